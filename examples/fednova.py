"""FedNova: average what clients did per local step, so that those with more steps don't pull harder."""

from dataclasses import dataclass

import fedhead as fh


@dataclass(frozen=True)
class FedNova(fh.Method):
    """Average the clients' updates per local step (Wang et al., 2020)."""

    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        """Send ‖a_i‖₁ too: what τ_i steps of SGD with momentum ρ add up to, [τ_i − ρ(1−ρ^τ_i)/(1−ρ)]/(1−ρ)."""
        rho, reply = client.task.local.optimizer.momentum, super().finish(w, client)
        steps = (client.steps - rho * (1 - rho**client.steps) / (1 - rho)) / (1 - rho)
        return reply._replace(send=reply.send.replace(steps=steps))

    def aggregate(self, server: fh.Tree, replies: fh.Replies, task: fh.Task) -> fh.Tree:
        """x ← x + τ_eff Σ p_i (y_i − x)/‖a_i‖₁ with τ_eff = Σ p_i ‖a_i‖₁; running statistics are averaged plainly."""
        old, new = server["model"], super().aggregate(server, replies, task)["model"]
        steps, total = [float(sent["steps"]) for sent in replies.sent], sum(replies.samples)
        shares = [n / total / a for n, a in zip(replies.samples, steps, strict=True)]  # p_i / ‖a_i‖₁
        effective = sum(n / total * a for n, a in zip(replies.samples, steps, strict=True))  # τ_eff
        moved = old.replace(replies.mean("model", shares)).params - old.params
        return server.replace(model=new.replace(old.params + effective * sum(shares) * moved))


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x / 16
    federation = fh.Federation.from_arrays(
        x[300:], y[300:], "dirichlet(0.1)", clients=10, test=(x[:300], y[:300]), seed=0
    )
    for method in (fh.FedAvg(), FedNova()):
        result = fh.run(federation, "mlp", method, rounds=20, local_epochs=5, lr=0.1)
        print(f"{type(method).__name__}: {result.accuracy:.1f} %")
