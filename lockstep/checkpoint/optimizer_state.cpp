// SPDX-License-Identifier: BSD-3-Clause
// The state and the options of each of libtorch's optimizers, by their names in Python.
#include "lockstep/checkpoint/optimizer_state.h"
