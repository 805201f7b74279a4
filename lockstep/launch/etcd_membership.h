// SPDX-License-Identifier: BSD-3-Clause
// An agent's side of etcd, where the agents of an elastic job's hosts meet: its lease and record,
// and the record that all share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/elastic_cluster.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/rendezvous/etcd_client.h"

namespace lockstep {

// Changes the shared record. Called again if another agent has changed it meanwhile, or if an
// answer of etcd was lost: the record may then have the change already.
using ClusterEdit = std::function<void(ClusterJob&)>;

// The functions are for one thread, the launch's. After follow(), another one talks to etcd.
class EtcdMembership {
 public:
  // How long a lease lives without being renewed: after that, the other hosts go on.
  static constexpr std::chrono::seconds kLease{10};
  // How long after the last renewal the ranks of this host must be killed. The rest of the lease's
  // time is for killing them.
  static constexpr std::chrono::milliseconds kRanksLive{7'000};

  // Takes a lease. BackendError if etcd cannot be reached, or if cluster.address is no
  // address of this machine.
  EtcdMembership(const ElasticOptions& options, const ClusterOptions& cluster, int ranks);
  // Leaves the lease to its end: the ranks may still run.
  ~EtcdMembership() { end_thread(); }
  EtcdMembership(const EtcdMembership&) = delete;
  EtcdMembership& operator=(const EtcdMembership&) = delete;

  // The members of this host, which are ranks of the first generation or newcomers; none if a
  // signal stops this process.
  struct Met {
    std::vector<int> members{};
    int signal = 0;
  };
  // Blocks until it has some. UsageError if the job is over, or if its other agents have other
  // options; TimeoutError if not enough hosts come in time.
  Met meet(SignalWatch& signals);
  // Begins to follow the job: call it after the keeper was forked.
  void follow();

  // This host's name in records.
  const std::string& host() const { return host_; }
  // The socket for the store that this host serves.
  UniqueFd take_listener() { return std::move(listener_); }
  const std::string& address() const { return address_; }

  // Readable when job() has changed or the lease is lost.
  int descriptor() const { return news_.get(); }
  // The shared record as it was last seen.
  ClusterJob job();
  // Has the shared record changed, soon.
  void change(ClusterEdit edit);
  // Replaces what etcd has of this host, except for its terms, its store and whether it waits,
  // soon.
  void tell(const HostRecord& record);

  // When the ranks must be killed unless the lease is renewed.
  std::chrono::steady_clock::time_point ranks_live_until() const;
  // Why etcd does not answer; empty if it does.
  std::string trouble();

  // Makes the last changes, and gives up the lease: the others learn at once that this host's
  // members are gone. All of them must have ended. If etcd does not answer for some seconds, the
  // others learn it when the lease ends, and take members that have just finished for lost.
  void leave() noexcept;

 private:
  struct View {
    std::int64_t revision = 0;
    // The revision in which the shared record was changed.
    std::int64_t changed = 0;
    ClusterJob job{};
    LiveHosts live{};
    // In the order in which they came.
    std::vector<std::string> order{};
  };

  View read() const;
  // Asks for members, or waits for what they need; none if there are none yet.
  std::vector<int> ask_for_members(int wake);
  void renew_if_due();
  void publish_record();
  // Makes the changes of the shared record that are due. False if another agent was faster.
  bool advance(View& view);
  // The thread.
  void run();
  void give_up(const std::exception& reason);
  void end_thread();
  void note(const std::string& trouble);
  // The shared record as a host without members wants it.
  ClusterJob claim(const View& view) const;
  std::string key(const std::string& name) const { return prefix_ + name; }
  std::string host_key() const { return key("hosts/" + host_); }

  const ElasticOptions options_;
  const ClusterOptions cluster_;
  const int ranks_;
  const std::string prefix_;
  const std::string terms_;
  const EtcdClient etcd_;
  std::string address_;
  UniqueFd listener_;
  std::int64_t lease_ = 0;
  std::string host_;
  std::atomic<std::int64_t> renewed_at_ = 0;
  HostRecord told_{};

  std::mutex mutex_;
  HostRecord record_{};
  std::vector<ClusterEdit> edits_{};
  ClusterJob job_{};
  std::string trouble_{};

  // Counters of eventfd(2): for the launch, and for the thread.
  UniqueFd news_;
  UniqueFd wake_;
  std::atomic<bool> ending_ = false;
  std::optional<ServiceThread> thread_;
};

}  // namespace lockstep
