// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run`: starts a program as several local ranks, with torchrun's names of options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/launch/agent.h"

namespace lockstep::cli {

// The options as typed, and their meaning.
struct RunCommand {
  std::string ranks = "auto";
  int nodes = 1;
  std::optional<int> node_rank;
  std::string rendezvous = "static";
  std::string endpoint;
  std::string job;
  std::string local_address;
  std::string secret_file;
  std::optional<int> secret_fd;
  std::optional<int> threads;
  std::optional<double> stop_grace;
  // MIN:MAX, as typed; empty if the job is not elastic.
  std::string elastic;
  std::optional<double> hang_timeout;
  std::optional<int> max_restarts;
  bool no_prefix = false;
  bool standalone = false;
  std::string log_dir;
  std::vector<int> shown_ranks;
  std::vector<std::string> program;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // Moves the program and its arguments out of what follows the verb, before that is parsed: the
  // program's options are not those of `run`.
  void take_program(const ::CLI::App& app, std::vector<std::string>& arguments);

  // Runs the program and returns the launcher's exit code. UsageError for impossible options.
  int run() const;

 private:
  // Returns this machine's place among the machines; nullopt if there is one machine.
  std::optional<Node> node() const;
  // nullopt if the job is not elastic. `all`: the ranks that it begins with.
  std::optional<ElasticOptions> elastic_options(int all) const;
  // nullopt if the machines do not meet in etcd.
  std::optional<ClusterOptions> cluster() const;
};

// Reads --nproc-per-node: "3", "auto" (one rank per GPU, or per core if there is no GPU), "gpu" or
// "cpu". UsageError for other texts, for less than one, and for "gpu" without a GPU.
int parse_ranks(const std::string& text);

// Returns the number of GPUs on this machine that CUDA_VISIBLE_DEVICES leaves visible.
int count_gpus(const std::string& device_folder = "/dev");

}  // namespace lockstep::cli
