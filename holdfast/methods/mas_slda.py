"""MAS on an encoder under discriminant analysis."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.methods.mas import MAS
from holdfast.methods.under_slda import UnderSLDA


@dataclass
class MASSLDA(UnderSLDA, MAS):
    """Adapters learn under a throw-away head and the MAS penalty; the sums are carried along.

    Importance is measured on the features, so no head is needed for it. When the trunk moves, a ridge map
    from old to new features, estimated on the current task's sentences, moves the stored sums too.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α_j = (1/n) Σ_i |∂‖z(x_i)‖² / ∂θ_j| of the
        features z; s_k <- s_k (I + T), S_k <- (I + T)ᵀ S_k (I + T), T = (Z_oᵀZ_o + rI)⁻¹ Z_oᵀ(Z_n - Z_o)
    Paper: MAS (Aljundi et al., ECCV 2018) with streaming discriminant analysis and drift compensation
    Cost: E·b + b to measure the importance + 2·b to follow the features
    Two tasks: E1·b1 + b1 + E2·b2
    Extras: 2·(b1 + b2), features before and after the trunk moves; b2, the last consolidation
    Keeps: α (one number per trainable weight); n_k, s_k and S_k of every label
    """
