// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep run`, and their translation for the agent.
#include "tools/cli/run_command.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/secret.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/orphans.h"
#include "lockstep/launch/restarts.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "tools/cli/help.h"
#include "tools/cli/option_values.h"
#include "tools/cli/print.h"

namespace lockstep::cli {
namespace {

// Seconds; 0 kills at once.
constexpr Range<double> kGraces{0, 1e6};
constexpr Range<int> kRestarts{0, 1'000'000};
constexpr Range<double> kHangTimeouts{0.1, 1e6};

std::chrono::milliseconds in_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

bool is_gpu(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

int count_gpus(const std::string& device_folder) {
  int present = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(device_folder, error)) {
    if (is_gpu(entry.path().filename())) ++present;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return present;
  // CUDA reads the list up to the first entry that names no device: "-1" hides the rest.
  int named = 0;
  std::istringstream list(visible);
  for (std::string entry; std::getline(list, entry, ',') && !entry.starts_with('-');) ++named;
  return std::min(present, named);
}

int parse_ranks(const std::string& text) {
  if (text == "cpu") return available_cores();
  if (text == "gpu" || text == "auto") {
    const int gpus = count_gpus();
    if (gpus > 0) return gpus;
    if (text == "auto") return available_cores();
    throw UsageError(
        "--nproc-per-node gpu: this machine shows no NVIDIA GPU (/dev/nvidia0 and on, as "
        "CUDA_VISIBLE_DEVICES leaves them); give a number, or cpu");
  }
  if (const auto ranks = parse_number(text, kCounts)) return *ranks;
  throw UsageError(fmt::format("--nproc-per-node \"{}\": give {}, or auto, gpu or cpu", text,
                               in_words(kCounts)));
}

void RunCommand::describe(::CLI::App& app) {
  app.option_defaults()->group("Ranks");
  app.add_option("-n,--nproc-per-node,--nproc_per_node", ranks,
                 fmt::format("Number of ranks, or gpu (one per GPU), cpu (one per core) or auto "
                             "(gpu if there is one, else cpu) (default: {})",
                             ranks))
      ->type_name("N|auto|gpu|cpu");
  app.option_defaults()->group("Several machines");
  add_number(app, "--nnodes", nodes, kCounts,
             fmt::format("Number of machines, each with its own `lockstep run` and the same number "
                         "of ranks (default: {})",
                         nodes));
  add_number(app, "--node-rank,--node_rank", node_rank, kFrom0,
             "Number of this machine among them, from 0 (default: 0 if there is one machine)");
  app.add_option("--rdzv-endpoint,--rdzv_endpoint", endpoint,
                 "Host name of machine 0 and a free port there, the same on all machines; with "
                 "--rdzv-backend etcd, where etcd serves its clients")
      ->type_name("HOST:PORT");
  choose_from(app.add_option("--rdzv-backend,--rdzv_backend", rendezvous,
                             fmt::format("Where the machines meet: at machine 0 (static), or in "
                                         "etcd, for jobs with --elastic (default: {})",
                                         rendezvous))
                  ->type_name("NAME"),
              {"static", "etcd"});
  app.add_option("--rdzv-id,--rdzv_id", job,
                 "Name of the job in etcd, the same on all machines, and of no other job")
      ->type_name("NAME")
      ->needs("--rdzv-backend");
  app.add_option("--local-addr,--local_addr", local_address,
                 "Address of this machine for the others (default: the one that reaches etcd)")
      ->type_name("HOST")
      ->needs("--rdzv-backend");
  app.add_option("--secret-file", secret_file,
                 "File with the secret that authenticates ranks, readable only by you (default: no "
                 "authentication)")
      ->type_name("FILE");
  add_number(app, "--secret-fd", secret_fd, kFrom0,
             "Open descriptor with that secret, such as from 3<FILE in a shell")
      ->excludes("--secret-file");
  app.option_defaults()->group("Ranks");
  add_number(app, "--threads", threads, kCounts,
             "Number of threads of each rank (default: OMP_NUM_THREADS, or an equal share of the "
             "cores)");
  add_number(app, "--stop-grace,--stop_grace", stop_grace, kGraces,
             "Time from the signal that ends ranks to SIGKILL (default: 10 after a signal to the "
             "launcher, 0.5 after the failure of another rank)")
      ->type_name("SECONDS");
  add_number(app, "--max-restarts,--max_restarts", max_restarts, kRestarts,
             fmt::format("Number of times that all ranks are started again when one has failed; "
                         "the program continues from its checkpoints (default: 0). With --elastic, "
                         "also the number of replacements that are started (default: {})",
                         ElasticOptions().replacements));
  app.add_option("--elastic", elastic,
                 "When a rank fails, let the others go on and start a replacement, as long as MIN "
                 "ranks are left; for programs that train with microbatches, as many as MAX at "
                 "least, up to which `lockstep resize` may add ranks (default: end the job)")
      ->type_name("MIN:MAX");
  add_number(app, "--hang-timeout,--hang_timeout", hang_timeout, kHangTimeouts,
             "With --elastic, the time without progress after which a rank that keeps the others "
             "waiting is killed (default: none)")
      ->type_name("SECONDS")
      ->needs("--elastic");
  app.option_defaults()->group("Output");
  app.add_flag("--no-prefix", no_prefix,
               "Lines of output without the prefix [rank N] (default: with it)");
  app.add_option("--log-dir,--log_dir", log_dir,
                 "Folder for each rank's output, as rank_N.log; with --max-restarts, as "
                 "attempt_K/rank_N.log (default: none)")
      ->type_name("DIR");
  add_numbers(app, "--local-ranks-filter,--local_ranks_filter", shown_ranks, kFrom0,
              "Ranks whose output is shown, as in 0,2 (default: all)")
      ->allow_extra_args(false)
      ->type_name("RANKS");
  app.option_defaults()->group("Ranks");
  app.add_flag("--standalone", standalone, "No effect; accepted for compatibility with torchrun");
  app.add_option("PROGRAM", program,
                 "Program to run, with the arguments that follow it; -- may precede it");
  add_examples(app, {{"lockstep run -n 4 ./train", "Train with four ranks on this machine"},
                     {"lockstep run -n 4 --elastic 1:4 ./train",
                      "Go on without a rank that fails, and replace it"},
                     {"lockstep run --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29400 ./train",
                      "Train on two machines; the other one gives --node-rank 1"}});
}

void RunCommand::take_program(const ::CLI::App& app, std::vector<std::string>& arguments) {
  auto end = arguments.begin();
  while (end != arguments.end() && end->starts_with('-') && *end != "--") {
    const ::CLI::Option* option = app.get_option_no_throw(*end);
    const bool value_follows = option != nullptr && option->get_items_expected_min() > 0;
    ++end;
    if (value_follows && end != arguments.end()) ++end;
  }
  program.assign(end != arguments.end() && *end == "--" ? end + 1 : end, arguments.end());
  arguments.erase(end, arguments.end());
}

std::optional<ClusterOptions> RunCommand::cluster() const {
  if (rendezvous != "etcd") return std::nullopt;
  const auto store = parse_endpoint(endpoint);
  if (!store) {
    throw UsageError(
        fmt::format("--rdzv-endpoint \"{}\": give the host and the port at which etcd serves its "
                    "clients, as in "
                    "etcd0:2379, the same on every machine",
                    endpoint));
  }
  if (job.empty() || job.find('/') != std::string::npos) {
    throw UsageError(
        "--rdzv-backend etcd needs --rdzv-id with a name of this job without /, the same on every "
        "machine");
  }
  if (elastic.empty()) {
    throw UsageError(
        "--rdzv-backend etcd is for jobs with --elastic; leave it out, or give "
        "--elastic MIN:MAX");
  }
  if (node_rank) {
    throw UsageError(
        fmt::format("--node-rank {}: with --rdzv-backend etcd, machines are numbered "
                    "as they come; leave it out",
                    *node_rank));
  }
  return ClusterOptions{
      .etcd = *store, .job = job, .hosts = nodes, .address = local_address, .secret = {}};
}

std::optional<Node> RunCommand::node() const {
  if (rendezvous == "etcd") return std::nullopt;
  if (nodes == 1) {
    if (node_rank.value_or(0) != 0) {
      throw UsageError(
          fmt::format("--node-rank {}: there is only machine 0; see --nnodes", *node_rank));
    }
    return std::nullopt;
  }
  if (!node_rank || *node_rank >= nodes) {
    throw UsageError(
        fmt::format("--nnodes {} needs --node-rank with this machine's number, from 0 to {}{}",
                    nodes, nodes - 1, node_rank ? fmt::format(", not {}", *node_rank) : ""));
  }
  const auto store = parse_endpoint(endpoint);
  if (!store) {
    throw UsageError(fmt::format(
        "--rdzv-endpoint \"{}\": give a host name of machine 0 and a port from {} to {} that is "
        "free there, as in node0:29400 or [2001:db8::1]:29400, the same on every machine",
        endpoint, kPorts.least, kPorts.most));
  }
  return Node{.number = *node_rank, .nodes = nodes, .host = store->host, .port = store->port};
}

std::optional<ElasticOptions> RunCommand::elastic_options(int all) const {
  if (elastic.empty()) return std::nullopt;
  const auto colon = elastic.find(':');
  const auto least = parse_number(elastic.substr(0, colon), kCounts);
  const auto most =
      parse_number(colon == std::string::npos ? std::string() : elastic.substr(colon + 1), kCounts);
  if (!least || !most || *least > all || all > *most) {
    throw UsageError(fmt::format(
        "--elastic \"{}\": give the least and the greatest number of ranks, as in 1:{}, with the "
        "{} ranks of {} between them",
        elastic, all, all, nodes > 1 ? "all machines" : "--nproc-per-node"));
  }
  if (*most > ElasticBoard::kMostMembers) {
    throw UsageError(fmt::format("--elastic {}: an elastic job has at most {} ranks", elastic,
                                 ElasticBoard::kMostMembers));
  }
  if (nodes > 1 && rendezvous != "etcd") {
    throw UsageError(
        fmt::format("--elastic {} and --nnodes {}: the machines of an elastic job meet "
                    "in etcd; give --rdzv-backend etcd",
                    elastic, nodes));
  }
  ElasticOptions options{.least = *least, .most = *most};
  if (max_restarts) options.replacements = *max_restarts;
  if (hang_timeout) options.hang_timeout = in_milliseconds(*hang_timeout);
  return options;
}

int RunCommand::run() const {
  if (program.empty()) throw UsageError("name a program to run");
  AgentOptions options;
  options.program = program;
  options.ranks = parse_ranks(ranks);
  options.cluster = cluster();
  options.elastic = elastic_options(options.ranks * (options.cluster ? nodes : 1));
  options.node = node();
  // In a cluster, only lost ranks are started again.
  RestartOptions restarts{.max_restarts = options.cluster ? 0 : max_restarts.value_or(0)};
  if (!secret_file.empty()) {
    restarts.secret = read_secret(secret_file);
    options.environment.emplace_back(kSecretFileVariable,
                                     std::filesystem::absolute(secret_file).string());
  }
  if (secret_fd) {
    restarts.secret = read_secret(*secret_fd);
    options.environment.emplace_back(kSecretFdVariable, std::to_string(*secret_fd));
  }
  if ((options.cluster || (options.node && restarts.max_restarts > 0)) && restarts.secret.empty()) {
    restarts.secret = secret_of_environment();
  }
  if (options.cluster) options.cluster->secret = restarts.secret;
  options.threads = threads;
  if (stop_grace) {
    options.stop_grace = in_milliseconds(*stop_grace);
    options.interrupt_grace = options.stop_grace;
  }
  options.prefix = !no_prefix;
  options.log_dir = log_dir;
  if (!shown_ranks.empty()) options.shown_ranks = shown_ranks;
  options.end_orphans = true;
  if (!children_can_be_seen()) {
    print(stderr,
          "lockstep: warning: /proc is not mounted: processes that ranks put into sessions of "
          "their own outlive the job; mount /proc\n");
  }
  restarts.on_restart = [](const std::string& line) {
    write_last(OutputStream::err, "lockstep run: " + line + "\n");
  };
  const RestartResult result = run_with_restarts(options, restarts);
  if (!result.report.empty()) write_last(OutputStream::err, "lockstep run: " + result.report);
  return result.exit_code;
}

}  // namespace lockstep::cli
