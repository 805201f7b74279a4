// SPDX-License-Identifier: BSD-3-Clause
// The store in which Gloo looks up the other ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/remote/gloo/gloo_sockets.h"

namespace lockstep {

// Answers at once that each rank listens at its stand-in, without asking any other rank.
c10::intrusive_ptr<c10d::Store> make_gloo_store(StandIns stand_ins);

}  // namespace lockstep
