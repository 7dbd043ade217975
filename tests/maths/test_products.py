"""Products of which one half is computed."""

import pytest
import torch

from holdfast.maths.products import BLOCK, cholesky, gram, half_gram, mirrored


def test_the_product_by_hand():
    """[[1, 2], [3, 4]]: columns (1, 3) and (2, 4), products 10, 14 and 20."""
    assert gram(torch.tensor([[1.0, 2], [3, 4]])).tolist() == [[10, 14], [14, 20]]


def test_it_is_the_matrix_product_and_symmetric():
    z = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(gram(z), z.double().T @ z.double())
    for part in (z[:, :5], z[::2], z.T):  # not contiguous
        assert torch.allclose(gram(part), part.double().T @ part.double())
        assert torch.equal(gram(part), gram(part).T)


def test_no_rows_are_zero():
    assert torch.equal(gram(torch.zeros(0, 3)), torch.zeros(3, 3).double())


def test_a_half_is_mirrored_across_blocks():
    z = torch.randn(5, 2 * BLOCK + 3, generator=torch.Generator().manual_seed(0)).double()
    whole = z.T @ z
    assert torch.equal(half_gram(z), half_gram(z).triu())
    assert torch.equal(mirrored(whole.triu()), whole.triu() + whole.triu(1).T)
    assert torch.allclose(gram(z), whole)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_factor_by_hand_and_by_torch(precision):
    """[[4, 2], [2, 5]] = LLᵀ with L = [[2, 0], [1, 2]]."""
    two = torch.tensor([[4.0, 2], [2, 5]], dtype=precision)
    assert cholesky(two).tolist() == [[2, 0], [1, 2]]
    assert two.tolist() == [[4, 2], [2, 5]], "unchanged"
    z = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)).to(precision)
    a = z.T @ z
    assert cholesky(a).dtype == precision
    assert torch.allclose(cholesky(a), torch.linalg.cholesky(a), rtol=1e-4)
    assert torch.allclose(cholesky(a[:5, :5]), torch.linalg.cholesky(a[:5, :5]), rtol=1e-4)
    assert cholesky(a - 10 * a.trace() * torch.eye(7, dtype=precision)) is None
