"""An Nsight Systems export as kvscope's tables."""
