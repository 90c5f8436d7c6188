"""The embedded policy: its architecture, and the weights that the package ships."""
