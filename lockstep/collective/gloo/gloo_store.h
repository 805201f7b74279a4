// SPDX-License-Identifier: BSD-3-Clause
// A store of ours as c10d wants one.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/rendezvous/store.h"

namespace lockstep {

// Has what Gloo needs of a store: set, get, add and wait.
c10::intrusive_ptr<c10d::Store> make_gloo_store(std::shared_ptr<Store> store);

}  // namespace lockstep
