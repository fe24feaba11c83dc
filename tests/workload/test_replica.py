"""What is trained, without processes: model, data, arena, optimizer."""

from __future__ import annotations

import pytest
import torch

from chaos.workload.reference.config import ModelShape
from chaos.workload.reference.training.arena import Arena
from chaos.workload.reference.training.data import ByteText, standard_library_text
from chaos.workload.reference.training.model import Decoder
from chaos.workload.reference.training.optimizer import AdamW
from chaos.workload.reference.training.replica import Replica

SHAPE = ModelShape()


@pytest.fixture
def replica() -> Replica:
    return Replica(SHAPE, seed=5)


def one_step(replica: Replica, world: int = 2) -> None:
    total = torch.zeros_like(replica.arena.gradient)
    for slot in range(world):
        total += replica.compute(slot)
    replica.arena.gradient.copy_(total)
    replica.apply(world)


def test_parameters_and_gradients_are_views_of_the_arena(replica: Replica) -> None:
    start, end = replica.arena.parameters.data_ptr(), replica.arena.parameters.data_ptr() + 4 * replica.arena.size
    model = replica._model
    assert sum(p.numel() for p in model.parameters()) == replica.arena.size
    assert all(start <= p.data_ptr() < end for p in model.parameters())
    replica.compute(0)
    gradient = torch.cat([p.grad.flatten() for p in replica.arena._model_parameters if p.grad is not None])
    assert torch.equal(gradient, replica.arena.gradient[:-2])
    assert gradient.norm() > 0


def test_a_renewed_gradient_leaves_the_old_buffer_alone(replica: Replica) -> None:
    old = replica.compute(0)
    kept = old.clone()
    replica.arena.renew_gradient()
    assert torch.equal(replica.compute(0), kept)
    old.fill_(1e9)  # what an abandoned collective may do
    assert torch.equal(replica.compute(0), kept)


def test_the_loss_travels_behind_the_gradient(replica: Replica) -> None:
    loss = float(replica.compute(0)[-2])
    assert 5 < loss < 6  # near the entropy of 256 equal bytes, 5.55 nats
    figures = replica.apply(1)
    assert figures.loss == loss


def test_votes_travel_behind_the_loss_and_are_counted(replica: Replica) -> None:
    said_no = replica.compute(0).clone()
    said_yes = replica.compute(1, vote=True).clone()
    replica.arena.gradient.copy_(said_no + said_yes)
    assert replica.apply(2).votes == 1


def test_the_average_over_ranks_is_what_one_rank_with_all_data_computes(replica: Replica) -> None:
    parts = [replica.compute(slot).clone() for slot in range(2)]
    batches = [replica._data.batch(0, slot) for slot in range(2)]
    inputs, targets = (torch.cat([batch[i] for batch in batches]) for i in (0, 1))
    replica.arena.gradient.zero_()
    replica._model(inputs, targets).backward()
    assert torch.allclose((parts[0] + parts[1])[:-2] / 2, replica.arena.gradient[:-2], atol=1e-6)


def test_the_optimizer_does_what_torch_s_own_does() -> None:
    ours = AdamW(warmup=1, clip=float("inf"))
    model = Decoder(SHAPE, 1)
    arena = Arena(model)
    theirs = torch.nn.Parameter(arena.parameters.clone())
    groups = [{"params": [theirs], "weight_decay": ours.decay}]
    reference = torch.optim.AdamW(groups, lr=ours.rate, betas=(ours.beta1, ours.beta2), eps=ours.epsilon)
    arena.decayed = arena.size
    for step in range(5):
        gradient = torch.randn(arena.size, generator=torch.Generator().manual_seed(step))
        theirs.grad = gradient.clone()
        reference.step()
        with torch.no_grad():
            norm = ours.update(arena, gradient, step)
        assert norm == pytest.approx(float(theirs.grad.norm()))
    assert torch.allclose(arena.parameters, theirs.detach(), atol=1e-6)


def test_a_large_gradient_is_clipped() -> None:
    arena = Arena(Decoder(SHAPE, 1))
    gradient = torch.full((arena.size,), 3.0)
    with torch.no_grad():
        norm = AdamW(clip=1.0).update(arena, gradient, 0)
    assert norm == pytest.approx(3 * arena.size**0.5, rel=1e-4)
    assert float(gradient.norm()) == pytest.approx(1.0, rel=1e-4)


def test_gains_of_norms_take_no_weight_decay() -> None:
    model = Decoder(SHAPE, 1)
    arena = Arena(model)
    with torch.no_grad():
        AdamW(warmup=1).update(arena, torch.zeros(arena.size), 0)
    assert torch.equal(model.norm.weight, torch.ones(SHAPE.dim))
    assert arena.decayed < arena.size


def test_the_state_is_a_function_of_seed_and_steps(replica: Replica) -> None:
    other = Replica(SHAPE, seed=5)
    other.warm_up()
    for _ in range(3):
        one_step(replica)
        one_step(other)
    assert replica.digest() == other.digest()
    assert replica.digest() != Replica(SHAPE, seed=6).digest()


def test_a_loaded_state_goes_on_to_the_bit(replica: Replica) -> None:
    for _ in range(3):
        one_step(replica)
    saved, step = replica.arena.state.clone(), replica.completed
    one_step(replica)
    other = Replica(SHAPE, seed=5)
    other.load(saved, step)
    one_step(other)
    assert (other.completed, other.digest()) == (4, replica.digest())


def test_reset_goes_back_to_the_beginning(replica: Replica) -> None:
    before = replica.digest()
    one_step(replica)
    assert replica.digest() != before
    replica.reset()
    assert (replica.completed, replica.digest()) == (0, before)


def test_the_loss_really_falls(replica: Replica) -> None:
    losses = []
    for _ in range(200):
        total = replica.compute(0).clone() + replica.compute(1)
        replica.arena.gradient.copy_(total)
        losses.append(replica.apply(2).loss)
    assert losses[0] > 5
    assert sum(losses[-30:]) / 30 < 3.5


def test_an_untied_head_has_parameters_of_its_own() -> None:
    tied, untied = Replica(SHAPE, 1), Replica(ModelShape(tied=False), 1)
    assert untied.arena.size == tied.arena.size + 256 * SHAPE.dim


def test_the_decoder_cannot_see_the_future() -> None:
    model = Decoder(SHAPE, 1)
    seen: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda _module, _args, out: seen.append(out.detach()))
    inputs = torch.zeros(1, SHAPE.context, dtype=torch.int64)
    model(inputs, inputs)
    changed = inputs.clone()
    changed[0, -1] = 1
    model(changed, inputs)
    assert torch.equal(seen[0][:, :-1], seen[1][:, :-1])
    assert not torch.equal(seen[0][:, -1], seen[1][:, -1])


def test_text_is_source_code_in_a_fixed_order() -> None:
    text = standard_library_text(10_000)
    assert text.dtype == torch.uint8
    assert len(text) == 10_000
    assert torch.equal(text, standard_library_text(10_000))
    assert b"import" in bytes(text.tolist())


def test_batches_are_a_function_of_seed_step_and_slot() -> None:
    text = standard_library_text(50_000)
    data, same, other = ByteText(text, 1, 3, 16), ByteText(text, 1, 3, 16), ByteText(text, 2, 3, 16)
    seen = set()
    for step in range(20):
        for slot in range(4):
            inputs, targets = data.batch(step, slot)
            assert inputs.shape == targets.shape == (3, 16)
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            assert torch.equal(inputs, same.batch(step, slot)[0])
            assert not torch.equal(inputs, other.batch(step, slot)[0])
            seen.add(bytes(inputs.flatten().tolist()))
    assert len(seen) == 80
