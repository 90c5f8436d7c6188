"""Train one policy through many harnesses: plan, roll out, grade, weigh, update, publish."""

from __future__ import annotations

from whippletree.evaluate import evaluate
from whippletree.run import Clock, Run, require_graded, step_metrics


async def train(run: Run) -> None:
    """Go on from where the run stopped, to its last step; every finished step is permanent."""
    policy, algorithm, config = run.policy, run.algorithm, run.config
    async with run.acting() as acting:
        for step in run.steps():
            if step and config.evaluate.every and step % config.evaluate.every == 0:
                await acting.rest()
                await evaluate(run, label=f"step {step}", step=step - 1)
            clock = Clock(policy)
            for due in acting.due(step):  # this step, and where rollouts run ahead of the updates, the next ones
                acting.begin(due, run.scheduler.assign(due))  # which task under which harness
            groups = await acting.groups(step)  # act and grade; every model call is captured
            require_graded(groups, f"step {step + 1}")
            credit = run.fresh(algorithm.credit(groups))  # call trees to weighted samples, none by weights too old
            credit = await algorithm.appraise(policy, credit)  # values, reference: by the weights before the update
            run.report(step, credit.problems)
            learned = await policy.forward_backward(credit.samples, algorithm.loss(step))
            sketch = await policy.gradient_sketch(run.scheduler.sketch_size, config.seed)  # where it is wanted
            learned |= await policy.optim_step(lr=run.lr(step), max_grad_norm=config.optimizer.max_grad_norm)
            gap = await policy.publish()  # serve the new weights, and check that they are served
            metrics = step_metrics(groups, credit, learned, gap, clock)
            run.scheduler.observe(step, groups, metrics, sketch)  # feedback for adaptive schedules
            run.commit(step, groups, metrics, clock)
    await evaluate(run, label="final", step=config.steps - 1)
    run.store.set_meta("finished", True)
