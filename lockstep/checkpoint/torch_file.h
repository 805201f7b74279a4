// SPDX-License-Identifier: BSD-3-Clause
// Public. Reads what Python's torch.save writes, without executing anything, and writes files that
// Python's torch.load(weights_only=True) reads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/torch_file/torch_value.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Reads a file of torch.save: tensors, lists, tuples, dicts, OrderedDicts, numbers, strings, bools
// and None, at any depth up to 100. Tensors are on the CPU, do not require grad, and share memory
// where they did when they were saved.
//
// CheckpointError, naming the file and the cause, if the file is damaged or contains anything else:
// Python's pickle can call any function, and this reader calls none. It refuses archives that are
// compressed, TorchScript archives (C++'s torch::save writes them too), files from before
// PyTorch 1.6, and tensors with more elements than their storage, as expand() makes them. The error
// for a file of another known format names that. UsageError if there is no such file, or if it is a
// folder; BackendError if the disk fails.
//
// Allocates no more than the size of the file for tensors, and a fixed multiple of the pickle's
// size, which is at most 32 MiB, for the rest.
TorchValue read_torch_file(const std::filesystem::path& file);
// Reads the bytes of such a file; `name` replaces the file's name in errors.
TorchValue read_torch_file(std::span<const std::byte> bytes, const std::string& name);

// Returns the tensors of a state dict: the value itself, or its part `part`, such as "model" in
// {"model": net.state_dict(), "epoch": 3}. CheckpointError if there is no such part, or if it is
// not a dict of names and tensors. The message lists the parts that are, or names an entry that is
// not a tensor, such as the extra state of a Python module.
std::vector<NamedTensor> state_dict_of(const TorchValue& value, std::string_view part = "");

// Returns every tensor at any depth. Its name consists of the keys and positions that lead to it:
// "model.0.weight", "optimizer.state.0.exp_avg". CheckpointError if two have the same name, if a
// name is longer than 4,096 bytes, or if there are more than 250,000.
std::vector<NamedTensor> all_tensors(const TorchValue& value);

// Writes an OrderedDict of the tensors, in their order. Replaces the file atomically and blocks
// until it is on the disk, as write_safetensors does. Tensors may be on any device; Python reads
// them to the CPU. Tensors with the same elements in memory, such as tied weights, are written once
// and share memory in Python too; other views are written by themselves, without the rest of their
// storage.
//
// UsageError if two names are the same, a name is not UTF-8 or longer than 4,096 bytes, if a tensor
// is undefined, sparse or quantized, or if the path cannot be written; BackendError if the disk
// fails or is full. write_safetensors says which file is then in place.
void write_torch_file(const std::filesystem::path& file, std::span<const NamedTensor> tensors);

// Writes any value, which read_torch_file then returns. A Dict becomes a dict of Python, which
// keeps the order too; net.load_state_dict takes it like an OrderedDict. With weights_only=True,
// PyTorch 1.13 refuses every float, even in its own files.
//
// UsageError as above for a tensor at any depth, if a string is not UTF-8, a Dict has a key that is
// neither a string nor an integer or has one twice, or values are nested more than 100 deep.
void write_torch_file(const std::filesystem::path& file, const TorchValue& value);

// Returns a Dict of the tensors, in their order: the inverse of state_dict_of.
TorchValue dict_of(std::span<const NamedTensor> tensors);

}  // namespace lockstep
