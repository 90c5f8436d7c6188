"""Credit and loss: from graded groups to weighted samples, and from tokens to a scalar."""
