"""A tiny random encoder of every family that adapters know."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from holdfast.models.adapters import ADAPTERS, adapt

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
EXTRAS = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3},
    "distilbert": {"hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "modernbert": {"attention_dropout": 0.1, "mlp_dropout": 0.1, "embedding_dropout": 0.1},
}


def tiny(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(family, **SIZES, **EXTRAS.get(family, {}))).eval()


def adapted(family: str, preset: str = "houlsby", seed: int = 0) -> PreTrainedModel:
    model = tiny(family)
    adapt(model, ADAPTERS[preset], seed=seed)
    return model
