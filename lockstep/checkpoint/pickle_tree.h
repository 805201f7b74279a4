// SPDX-License-Identifier: BSD-3-Clause
// Makes the tree of values that a pickle stands for.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/checkpoint/pickle_machine.h"

namespace lockstep::pickle {

// Copies the values into a tree, in which nothing is shared. Otherwise a pickle of a few bytes
// could repeat a list of lists of lists a billion times.
//
// CheckpointError if the tree would take much more memory than the pickle, if it is too deep, which
// a list that contains itself is, or if a dict has a key twice.
TorchValue tree_of(const Item& root, std::size_t pickle_bytes, const std::string& file);

}  // namespace lockstep::pickle
