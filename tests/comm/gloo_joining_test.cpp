// SPDX-License-Identifier: BSD-3-Clause
// What happens to ranks while they join by Gloo: deaths at any call, pending peers at any port.
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/die_at_call.h"
#include "support/group_by.h"
#include "support/join.h"
#include "support/rank_processes.h"
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/local_store_server.h"
#include "lockstep/rendezvous/prefix_store.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;

constexpr int kRanks = 3;

// Places the processes of run_ranks in groups of this size. The last process is in none: it serves
// the store in which the ranks rendezvous.
struct Seat {
  explicit Seat(const Rank& rank)
      : group(rank.rank() / kRanks),
        rank(rank.rank() % kRanks),
        serves(rank.rank() == rank.size() - 1) {}
  int group;
  int rank;
  bool serves;
};

std::string path_of_store(const Rank& rank) {
  return rank.folder() + "/store";
}

void serve_store(Rank& rank, const std::vector<int>& until_done) {
  LocalStoreServer server;
  const ServiceThread thread([&server](int stop) {
    while (true) {
      std::array<pollfd, 2> entries{{{stop, POLLIN, 0}, {server.descriptor(), POLLIN, 0}}};
      ::poll(entries.data(), entries.size(), -1);
      if (entries[0].revents != 0) return;
      server.serve();
    }
  });
  std::ofstream(path_of_store(rank)) << server.path();
  rank.cue("serves");
  for (const int other : until_done) rank.await(other, "done");
}

std::shared_ptr<Store> store_of(const Rank& rank) {
  std::string path;
  std::ifstream(path_of_store(rank)) >> path;
  return std::make_shared<LocalStore>(path);
}

std::shared_ptr<ProcessGroup> join_at_store(const Rank& rank, std::chrono::milliseconds timeout,
                                            const std::string& prefix) {
  Membership membership;
  membership.rank = Seat(rank).rank;
  membership.world_size = kRanks;
  membership.store = std::make_shared<PrefixStore>(prefix, store_of(rank));
  return group_by(make_gloo_backend, std::move(membership), {.timeout = timeout}, "gloo");
}

std::vector<int> all_but(const std::vector<int>& victims, int ranks) {
  std::vector<int> others;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(victims, rank) == victims.end()) others.push_back(rank);
  }
  return others;
}

// How many calls each rank makes to join undisturbed.
std::vector<int> calls_of_joining() {
  const auto outcomes = run_ranks(kRanks + 1, [](Rank& rank) {
    if (Seat(rank).serves) return serve_store(rank, all_but({}, kRanks));
    rank.await(kRanks, "serves");
    die_at_call(0);
    const auto group = join_at_store(rank, 20s, "");
    rank.report(std::to_string(calls_made()));
    group->barrier().wait();
    rank.cue("done");
  });
  std::vector<int> calls;
  for (int rank = 0; rank < kRanks; ++rank) {
    calls.push_back(std::stoi(outcomes[static_cast<std::size_t>(rank)].result));
  }
  return calls;
}

struct Death {
  int rank;
  int call;
};

// Makes so many deaths, those of each rank at equal distances from its first call to its last.
std::vector<Death> make_deaths(int count) {
  const std::vector<int> calls = calls_of_joining();
  std::vector<Death> deaths;
  for (int death = 0; death < count; ++death) {
    const int rank = death % kRanks;
    deaths.push_back({rank, 1 + death * (calls[static_cast<std::size_t>(rank)] - 1) / count});
  }
  return deaths;
}

// Each death happens in a group of its own, all at the same time. The others wait until they see
// it, or for the timeout if the victim died before they had seen it.
TEST(GlooJoining, ADeathAtAnyCallIsNamed) {
  const std::vector<Death> deaths = make_deaths(12);
  const int ranks = static_cast<int>(deaths.size()) * kRanks;
  std::vector<int> victims;
  for (std::size_t group = 0; group < deaths.size(); ++group) {
    victims.push_back(static_cast<int>(group) * kRanks + deaths[group].rank);
  }
  const auto outcomes =
      run_ranks(ranks + 1,
                [&](Rank& rank) {
                  const Seat seat(rank);
                  if (seat.serves) return serve_store(rank, all_but(victims, ranks));
                  rank.await(ranks, "serves");
                  const auto [victim, call] = deaths[static_cast<std::size_t>(seat.group)];
                  if (seat.rank == victim) die_at_call(call);
                  try {
                    const auto group = join_at_store(rank, 20s, std::to_string(seat.group) + "/");
                    // It has made fewer calls than it did when they were counted.
                    if (seat.rank == victim) ::raise(SIGKILL);
                    group->barrier().wait();
                  } catch (const Error&) {
                    rank.cue("done");
                    throw;
                  }
                  rank.await_signal();
                },
                {.may_exit = victims, .errors_are_outcomes = true});
  int seen = 0;
  for (const int rank : all_but(victims, ranks)) {
    const auto [victim, call] = deaths[static_cast<std::size_t>(rank / kRanks)];
    const std::string& error = outcomes[static_cast<std::size_t>(rank)].error;
    // "its connection was lost" if its process is not gone a second later, as on a busy machine.
    EXPECT_THAT(error, ContainsRegex(fmt::format(
                           "rank {0} \\(pid [0-9]+\\)( died| no longer|: its connection was lost)|"
                           "rank ([0-9], )*{0}(, [0-9])* did not join",
                           victim)))
        << "rank " << rank % kRanks << ", when rank " << victim << " dies at call " << call;
    seen += error.find("did not join") == std::string::npos ? 1 : 0;
  }
  EXPECT_GT(2 * seen, ranks - static_cast<int>(victims.size())) << "the others met their timeout";
}

// The addresses at which this process listens.
std::vector<sockaddr_in> listening() {
  std::set<std::string> sockets;
  std::error_code ignored;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(fd.path(), ignored);
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::vector<sockaddr_in> addresses;
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    if (state != "0A" || !sockets.contains(inode)) continue;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = static_cast<in_addr_t>(std::stoul(local.substr(0, 8), nullptr, 16));
    address.sin_port = htons(static_cast<in_port_t>(std::stoul(local.substr(9), nullptr, 16)));
    addresses.push_back(address);
  }
  return addresses;
}

enum class Manners { closes, resets, talks, stays };

// Returns the connection; nothing if the port is closed, as a server's is once all ranks have come.
std::optional<UniqueFd> intrude(const sockaddr_in& address, Manners manners) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  const auto* peer = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), peer, sizeof address) != 0) return {};
  if (manners == Manners::resets) {
    const linger at_once{1, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  } else if (manners == Manners::talks) {
    const std::vector<char> nonsense(100, '\x01');
    ::send(socket.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  }
  return socket;
}

class OtherStore : public Store {
 public:
  explicit OtherStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return store_->add(key, amount);
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    return store_->get(key, deadline);
  }

 private:
  std::shared_ptr<Store> store_;
};

// Before a rank tells the others where it listens, pending peers of all kinds connect there.
class VisitedStore final : public OtherStore {
 public:
  using OtherStore::OtherStore;

  void set(const std::string& key, const std::string& value) override {
    for (const auto& address : listening()) {
      for (const auto manners :
           {Manners::closes, Manners::resets, Manners::talks, Manners::stays}) {
        auto peer = intrude(address, manners);
        if (!peer) continue;
        ++visits_;
        if (manners == Manners::stays) staying_.push_back(*std::move(peer));
      }
    }
    OtherStore::set(key, value);
  }

  int visits() const { return visits_; }

 private:
  std::vector<UniqueFd> staying_;
  int visits_ = 0;
};

TEST(GlooJoining, UnauthenticatedPeersAtAnyPortCostNothing) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    if (Seat(rank).serves) return serve_store(rank, all_but({}, kRanks));
    rank.await(kRanks, "serves");
    const auto store = std::make_shared<VisitedStore>(store_of(rank));
    const auto group =
        group_by(make_gloo_backend, {.rank = rank.rank(), .world_size = kRanks, .store = store},
                 {.timeout = 20s}, "gloo");
    // Each kind at the port for the rank's peers, and at rank 0's monitor's server.
    EXPECT_GE(store->visits(), rank.rank() == 0 ? 8 : 4);
    const at::Tensor tensor = at::ones({100'000});
    for (int call = 0; call < 20; ++call) {
      group->all_reduce(tensor.fill_(1)).wait();
      EXPECT_TRUE((tensor == kRanks).all().item<bool>());
    }
    rank.cue("done");
  });
}

// An answer takes longer than a rank waits before it first looks whether the others are alive.
class FarStore final : public OtherStore {
 public:
  using OtherStore::OtherStore;

  std::string get(const std::string& key, const Deadline& deadline) override {
    constexpr std::chrono::milliseconds kLatency = 500ms;
    std::this_thread::sleep_for(std::min(kLatency, deadline.remaining()));
    if (deadline.passed()) throw TimeoutError("the answer is still on its way");
    return OtherStore::get(key, deadline);
  }
};

TEST(GlooJoining, ALongWayToTheStoreOnlyTakesLonger) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    if (Seat(rank).serves) return serve_store(rank, all_but({}, kRanks));
    rank.await(kRanks, "serves");
    const auto store = std::make_shared<FarStore>(store_of(rank));
    const auto group =
        group_by(make_gloo_backend, {.rank = rank.rank(), .world_size = kRanks, .store = store},
                 {.timeout = 40s}, "gloo");
    group->barrier().wait();
    rank.cue("done");
  });
}

}  // namespace
}  // namespace lockstep::testing
