// SPDX-License-Identifier: BSD-3-Clause
// Makes network namespaces that a bridge connects, and runs commands in them.
#include "support/hosts.h"

#include <stdexcept>

#include "support/program.h"
#include <fmt/format.h>
#include <unistd.h>

namespace lockstep::testing {
namespace {

std::string output_of(const std::string& command) {
  const Ended ended = run_to_end({"/bin/sh", "-c", command});
  if (ended.code != 0) {
    throw std::runtime_error(fmt::format("{}: exit code {}: {}", command, ended.code, ended.err));
  }
  return ended.out;
}

bool works(const std::string& command) {
  return Program({"/bin/sh", "-c", command}).wait() == 0;
}

}  // namespace

std::string Hosts::why_not() {
  if (::geteuid() != 0) return "network namespaces need root";
  if (!works("command -v ip && command -v tc")) return "there is no ip or tc (iproute2)";
  if (!works("unshare -n true")) return "network namespaces are not allowed here";
  return "";
}

Hosts::Hosts(int count, int megabits) : count_(count), name_(fmt::format("ls{}", ::getpid())) {
  try {
    make(megabits);
  } catch (...) {
    remove();
    throw;
  }
}

Hosts::~Hosts() {
  remove();
}

// The bridge has a namespace of its own, so that nothing of it shows on this machine.
void Hosts::make(int megabits) const {
  output_of(
      fmt::format("ip netns add {0}n && ip -n {0}n link add bridge type bridge && "
                  "ip -n {0}n link set bridge up",
                  name_));
  for (int host = 0; host < count_; ++host) {
    output_of(fmt::format(
        "set -e; ip netns add {0}; ip -n {0} link set lo up; "
        "ip -n {0} link add eth0 type veth peer name port{1} netns {2}n; "
        "ip -n {0} address add {3}/24 dev eth0; ip -n {0} link set eth0 up; "
        "ip -n {2}n link set port{1} master bridge up; "
        "ip netns exec {0} tc qdisc add dev eth0 root tbf rate {4}mbit burst 256kb latency 50ms",
        space(host), host, name_, address(host), megabits));
  }
}

void Hosts::remove() const {
  for (int host = 0; host < count_; ++host) {
    works(fmt::format("ip netns del {0}; rm -rf /etc/netns/{0}", space(host)));
  }
  works(fmt::format("ip netns del {}n", name_));
}

std::string Hosts::space(int host) const {
  return fmt::format("{}h{}", name_, host);
}

std::string Hosts::address(int host) {
  return fmt::format("10.77.0.{}", host + 1);
}

// `ip netns exec` puts what is in this folder over /etc.
void Hosts::name(int host, const std::string& name, const std::string& address) const {
  output_of(fmt::format("mkdir -p /etc/netns/{0} && echo '{1} {2}' >> /etc/netns/{0}/hosts",
                        space(host), address, name));
}

std::vector<std::string> Hosts::on(int host, std::vector<std::string> command) const {
  std::vector<std::string> all{"ip", "netns", "exec", space(host)};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

std::int64_t Hosts::bytes_sent(int host) const {
  return std::stoll(output_of(
      fmt::format("ip netns exec {} cat /sys/class/net/eth0/statistics/tx_bytes", space(host))));
}

bool Hosts::shape(int host, const std::string& discipline) const {
  return works(
      fmt::format("ip netns exec {} tc qdisc replace dev eth0 root {}", space(host), discipline));
}

std::int64_t Hosts::packets_dropped(int host) const {
  return std::stoll(output_of(fmt::format(
      "ip netns exec {} tc -s qdisc show dev eth0 | sed -n 's/.*dropped \\([0-9]*\\).*/\\1/p'",
      space(host))));
}

void Hosts::cut(int host) const {
  output_of(fmt::format("ip -n {} link set eth0 down", space(host)));
}

}  // namespace lockstep::testing
