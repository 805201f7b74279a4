// SPDX-License-Identifier: BSD-3-Clause
// Renews the lease, reads the records, and replaces the shared one until no other agent was faster.
#include "lockstep/launch/etcd_membership.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kRenewalInterval{2'000};
// For an answer of etcd; a renewal may fail twice before the ranks must be killed.
constexpr milliseconds kEtcdPatience{2'000};
// For its first answer, to a host that has no ranks yet.
constexpr milliseconds kFirstPatience{5'000};
// Before etcd is asked again after an error.
constexpr milliseconds kEtcdPause{200};
constexpr std::chrono::minutes kMeetingWait{30};
// For the last changes.
constexpr milliseconds kLeaveWait{5'000};

void ring(const UniqueFd& bell) {
  ::eventfd_write(bell.get(), 1);
}

void silence(const UniqueFd& bell) {
  eventfd_t rung = 0;
  ::eventfd_read(bell.get(), &rung);
}

UniqueFd make_bell() {
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) throw BackendError("cannot make an eventfd: raise ulimit -n");
  return bell;
}

ClusterJob readable_job(const std::string& key, const std::string& record) {
  try {
    return decode_job(record);
  } catch (const BackendError& error) {
    throw UsageError(
        ErrorContext{},
        fmt::format("the key {} of etcd is not Lockstep's: {}", key, error.details().cause),
        "give another --rdzv-id, or delete the key with etcdctl");
  }
}

std::string terms_of(const ElasticOptions& options, const ClusterOptions& cluster, int ranks) {
  std::string terms = fmt::format("--nnodes {} --nproc-per-node {} --elastic {}:{}", cluster.hosts,
                                  ranks, options.least, options.most);
  if (const auto timeout = options.hang_timeout; timeout.count() > 0) {
    terms += fmt::format(" --hang-timeout {}", static_cast<double>(timeout.count()) / 1000.0);
  }
  return terms;
}

}  // namespace

EtcdMembership::EtcdMembership(const ElasticOptions& options, const ClusterOptions& cluster,
                               int ranks)
    : options_(options),
      cluster_(cluster),
      ranks_(ranks),
      prefix_(fmt::format("/lockstep/{}/", cluster.job)),
      terms_(terms_of(options, cluster, ranks)),
      etcd_(cluster.etcd, kEtcdPatience),
      address_(cluster.address),
      news_(make_bell()),
      wake_(make_bell()) {
  const Endpoint& etcd = cluster.etcd;
  renewed_at_ = Clock::now().time_since_epoch().count();
  lease_ = EtcdClient(etcd, kFirstPatience).grant_lease(kLease);
  if (address_.empty()) {
    const Deadline deadline = Deadline::after(kFirstPatience);
    address_ = local_address(connect_tcp_at_once(etcd.host, etcd.port, deadline).get()).host;
  }
  listener_ = listen_tcp(address_, 0);
  record_.terms = terms_;
  record_.store = in_words(local_address(listener_.get()));
  host_ = fmt::format("{}#{:x}", address_, lease_);
  publish_record();
}

EtcdMembership::View EtcdMembership::read() const {
  const EtcdClient::Snapshot found = etcd_.read(prefix_);
  View view{.revision = found.revision};
  std::vector<std::pair<std::int64_t, std::string>> order;
  const std::string hosts = key("hosts/");
  for (const auto& [name, entry] : found.entries) {
    if (name == key("job")) {
      view.changed = entry.changed;
      view.job = readable_job(name, entry.value);
    } else if (name.starts_with(hosts)) {
      const std::string host = name.substr(hosts.size());
      try {
        view.live[host] = decode_host(entry.value);
      } catch (const BackendError&) {
        continue;  // of another version of Lockstep, which will find that it cannot read the job
      }
      order.emplace_back(entry.made, host);
    }
  }
  std::ranges::sort(order);
  for (auto& [made, name] : order) view.order.push_back(std::move(name));
  return view;
}

void EtcdMembership::renew_if_due() {
  const auto now = Clock::now();
  if (now.time_since_epoch() < Clock::duration(renewed_at_) + kRenewalInterval) return;
  etcd_.keep_alive(lease_);
  renewed_at_ = now.time_since_epoch().count();
}

void EtcdMembership::publish_record() {
  HostRecord record;
  {
    const std::lock_guard lock(mutex_);
    record = record_;
  }
  if (record == told_) return;
  etcd_.put(host_key(), encode(record), lease_);
  told_ = std::move(record);
}

ClusterJob EtcdMembership::claim(const View& view) const {
  ClusterJob job = view.job;
  const bool began = job.generation.number >= 0;
  // Of a job whose hosts were all lost, nobody else is left to say so.
  const bool abandoned =
      std::ranges::none_of(job.hosts,
                           [&](const auto& entry) { return view.live.contains(entry.second); }) &&
      (began || view.live.size() == 1);
  if (job.terms.empty() || abandoned) job = ClusterJob{.terms = terms_, .limit = options_.most};
  if (job.terms != terms_) {
    throw UsageError(
        ErrorContext{},
        fmt::format("job {} has {}, and this host was given {}", cluster_.job, job.terms, terms_),
        "give all hosts the same options, or another --rdzv-id");
  }
  if (job.finished > 0 || !job.failure.empty()) {
    throw UsageError(
        ErrorContext{},
        fmt::format("job {} is about to end, so that no host may join it", cluster_.job),
        "give another --rdzv-id, or start again when its other hosts have ended");
  }
  if (job.generation.number < 0) {
    std::vector<std::string> come = view.order;
    std::erase_if(come,
                  [&](const std::string& name) { return view.live.at(name).terms != terms_; });
    const auto wanted = static_cast<std::size_t>(cluster_.hosts);
    if (come.size() >= wanted) {
      come.resize(wanted);
      job.found(come, ranks_, view.live);
    }
  } else if (const int room = job.limit - job.ranks(); room > 0) {
    job.add_newcomers(host_, std::min(room, ranks_));
  }
  return job;
}

std::vector<int> EtcdMembership::ask_for_members(int wake) {
  renew_if_due();
  View view = read();
  std::vector<int> own = view.job.members_on(host_);
  if (!own.empty()) {
    job_ = std::move(view.job);
    return own;
  }
  const ClusterJob wanted = claim(view);
  if (wanted != view.job) {
    etcd_.replace(key("job"), view.changed, encode(wanted));
  } else {
    etcd_.wait_for_change(prefix_, view.revision, Deadline::after(kRenewalInterval), wake);
  }
  return {};
}

EtcdMembership::Met EtcdMembership::meet(SignalWatch& signals) {
  const Deadline deadline = Deadline::after(kMeetingWait);
  while (!deadline.passed()) {
    if (const auto signal = signals.next_stop()) {
      leave();
      return {.signal = *signal};
    }
    try {
      std::vector<int> own = ask_for_members(signals.descriptor());
      if (!own.empty()) return {.members = std::move(own)};
    } catch (const UsageError&) {
      leave();
      throw;
    } catch (const LeaseLost&) {
      throw;
    } catch (const Error&) {
      if (Clock::now() >= ranks_live_until()) throw;
      ::poll(nullptr, 0, static_cast<int>(kEtcdPause.count()));
    }
  }
  leave();
  throw TimeoutError(ErrorContext{},
                     fmt::format("job {} had no ranks for this host within {} min: it begins with "
                                 "{} hosts, and has at most {} ranks",
                                 cluster_.job, kMeetingWait.count(), cluster_.hosts, options_.most),
                     "start `lockstep run` on the others, with the same --rdzv-id, or raise MAX");
}

void EtcdMembership::follow() {
  record_.waits = false;
  thread_.emplace([this](int) { run(); });
}

void EtcdMembership::run() {
  while (!ending_) {
    try {
      silence(wake_);
      renew_if_due();
      publish_record();
      View view = read();
      if (!advance(view)) continue;
      note("");
      const auto next =
          Clock::duration(renewed_at_) + kRenewalInterval - Clock::now().time_since_epoch();
      etcd_.wait_for_change(prefix_, view.revision,
                            Deadline::after(std::chrono::ceil<milliseconds>(next)), wake_.get());
    } catch (const LeaseLost& error) {
      return give_up(error);
    } catch (const UsageError& error) {
      return give_up(error);  // a record that this version cannot read
    } catch (const std::exception& error) {
      note(error.what());
      ::poll(nullptr, 0, static_cast<int>(kEtcdPause.count()));
    }
  }
}

// The ranks of this host must end.
void EtcdMembership::give_up(const std::exception& reason) {
  renewed_at_ = 0;
  note(reason.what());
  ring(news_);
}

bool EtcdMembership::advance(View& view) {
  if (!view.live.contains(host_)) throw LeaseLost("the key of this host is gone");
  std::vector<ClusterEdit> edits;
  {
    const std::lock_guard lock(mutex_);
    edits = edits_;
  }
  ClusterJob next = view.job;
  for (const ClusterEdit& edit : edits) edit(next);
  next.settle(view.live, options_.least);
  if (next != view.job && !etcd_.replace(key("job"), view.changed, encode(next))) return false;
  const std::lock_guard lock(mutex_);
  edits_.erase(edits_.begin(), edits_.begin() + std::ssize(edits));
  if (next != job_) ring(news_);
  job_ = std::move(next);
  return true;
}

void EtcdMembership::note(const std::string& trouble) {
  const std::lock_guard lock(mutex_);
  trouble_ = trouble;
}

std::string EtcdMembership::trouble() {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

ClusterJob EtcdMembership::job() {
  silence(news_);
  const std::lock_guard lock(mutex_);
  return job_;
}

void EtcdMembership::change(ClusterEdit edit) {
  const std::lock_guard lock(mutex_);
  edits_.push_back(std::move(edit));
  ring(wake_);
}

void EtcdMembership::tell(const HostRecord& record) {
  const std::lock_guard lock(mutex_);
  HostRecord whole = record;
  whole.terms = terms_;
  whole.store = std::move(record_.store);
  whole.waits = false;
  record_ = std::move(whole);
  ring(wake_);
}

Clock::time_point EtcdMembership::ranks_live_until() const {
  return Clock::time_point(Clock::duration(renewed_at_)) + kRanksLive;
}

void EtcdMembership::end_thread() {
  ending_ = true;
  ring(wake_);
  thread_.reset();
}

void EtcdMembership::leave() noexcept {
  end_thread();
  const Deadline deadline = Deadline::after(kLeaveWait);
  while (true) {
    try {
      while (!edits_.empty() && !deadline.passed()) {
        View view = read();
        advance(view);
      }
      etcd_.revoke(lease_);
      // The last one leaves nothing behind.
      const View left = read();
      if (left.live.empty()) etcd_.remove(key("job"), left.changed);
      return;
    } catch (const LeaseLost&) {
      return;
    } catch (const std::exception&) {
      if (deadline.passed()) return;  // the lease ends by itself
      ::poll(nullptr, 0, static_cast<int>(kEtcdPause.count()));
    }
  }
}

}  // namespace lockstep
