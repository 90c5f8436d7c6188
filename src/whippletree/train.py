"""Train one policy through many harnesses: plan, roll out, grade, weigh, update, publish."""

from __future__ import annotations

from whippletree.evaluate import evaluate
from whippletree.rollout.engine import roll_out
from whippletree.run import Clock, Run, require_graded, step_metrics


async def train(run: Run) -> None:
    """Go on from where the run stopped, to its last step; every finished step is permanent."""
    policy, algorithm, config = run.policy, run.algorithm, run.config
    for step in run.steps():
        if step and config.evaluate.every and step % config.evaluate.every == 0:
            await evaluate(run, label=f"step {step}", step=step - 1)
        clock = Clock(policy)
        assignments = run.scheduler.assign(step)  # which task under which harness
        groups = await roll_out(  # act and grade; every model call is captured
            run.world, assignments, concurrency=config.rollout.concurrency, progress=run.progress
        )
        require_graded(groups, f"step {step + 1}")
        credit = algorithm.credit(groups)  # call trees to weighted samples
        credit = await algorithm.appraise(policy, credit)  # values, reference: what the weights say before the update
        run.report(step, credit.problems)
        learned = await policy.forward_backward(credit.samples, algorithm.loss(step))
        sketch = await policy.gradient_sketch(run.scheduler.sketch_size, config.seed)  # of the gradient, where wanted
        learned |= await policy.optim_step(lr=run.lr(step), max_grad_norm=config.optimizer.max_grad_norm)
        gap = await policy.publish()  # serve the new weights, and check that they are served
        metrics = step_metrics(groups, credit, learned, gap, clock)
        run.scheduler.observe(step, groups, metrics, sketch)  # feedback for adaptive schedules
        run.commit(step, groups, metrics, clock)
    await evaluate(run, label="final", step=config.steps - 1)
    run.store.set_meta("finished", True)
