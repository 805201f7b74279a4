// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run`: starts a program as several local ranks, with torchrun's spelling of options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/launch/agent.h"

namespace lockstep::cli {

// The options as they are typed; and what they mean.
struct RunCommand {
  std::string ranks = "auto";
  int nodes = 1;
  std::optional<int> node_rank;
  std::string endpoint;
  std::string secret_file;
  std::optional<int> secret_fd;
  std::optional<int> threads;
  bool no_prefix = false;
  bool standalone = false;
  std::string log_dir;
  std::vector<int> shown_ranks;
  std::vector<std::string> program;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // Moves the program and its arguments out of what follows the verb, before it is parsed: their
  // options are none of ours.
  void take_program(const ::CLI::App& app, std::vector<std::string>& arguments);

  // Runs the program and returns the launcher's exit code. UsageError for options that cannot be.
  int run() const;

 private:
  // What the options say of this machine's place among others.
  std::optional<Node> node() const;
};

// "3", or "auto" (a rank for each GPU, or for each core where there is none), "gpu", "cpu".
// UsageError for anything else, for less than one, and for "gpu" without one.
int parse_ranks(const std::string& text);

// GPUs of this machine that CUDA_VISIBLE_DEVICES leaves.
int count_gpus(const std::string& device_folder = "/dev");

}  // namespace lockstep::cli
