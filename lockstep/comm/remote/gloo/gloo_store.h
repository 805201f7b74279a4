// SPDX-License-Identifier: BSD-3-Clause
// The store in which Gloo looks up the other ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/remote/gloo/gloo_sockets.h"

namespace lockstep::gloo {

// The broadcast address of loopback, at which Gloo's device listens. A socket may listen there, but
// TCP cannot connect to it. It is also the highest address of loopback, and in Gloo the end with
// the higher address connects.
inline constexpr const char* kGlooHost = "127.255.255.255";

// Answers at once that each rank listens at its stand-in, without asking any other rank.
c10::intrusive_ptr<c10d::Store> make_store(StandIns stand_ins);

}  // namespace lockstep::gloo
