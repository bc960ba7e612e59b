package integration

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

var (
	herdClients    = flag.Int("herd", 300, "number of clients that connect at once in TestAHerdIsServedInOrder")
	herdAdmission  = flag.String("herd-admission", "{streams_per_second: 100, burst: 20}", "admission of the relay's listener in TestAHerdIsServedInOrder")
	restartClients = flag.Int("restart-clients", 300, "number of clients in TestARollingRestart")
	restartDrain   = flag.Duration("restart-drain", 3*time.Second, "drain.time of each relay in TestARollingRestart")
)

// giveUp is how long Envoy and gRPC wait for a resource.
const giveUp = 15 * time.Second

// manyEndpoints returns n resources and their names.
func manyEndpoints(n int) (names []string, resources []proto.Message) {
	for i := range n {
		names = append(names, fmt.Sprintf("endpoints-%03d", i))
		resources = append(resources, plainEndpoints(names[i], uint32(1000+i)))
	}
	return names, resources
}

// peakMemory returns the largest resident memory that a process had, in bytes, as the kernel counts it; 0 if that is not
// known.
func peakMemory(pid int) int { return statusBytes(pid, "VmHWM") }

// statusBytes returns a number of bytes in the status of a process.
func statusBytes(pid int, key string) (bytes int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if m := regexp.MustCompile(key + `:\s*(\S+) kB`).FindSubmatch(text); m != nil {
		bytes, _ = strconv.Atoi(string(m[1]))
	}
	return bytes << 10
}

// Clients that connect at once to a relay with an empty cache wait for admission, and all are served. The
// control plane sees one stream and one request for each name.
func TestAHerdIsServedInOrder(t *testing.T) {
	names, resources := manyEndpoints(20)
	cp := startControlPlane(t, delta)
	cp.set(resources...)
	config := strings.Replace(relayTo(cp.address, "delta"), "  - address: 127.0.0.1:0\n", "  - address: 127.0.0.1:0\n    admission: "+*herdAdmission+"\n", 1)
	r := startRelay(t, config+"drain: {time: 0s}\n")
	all := startRoamers(t, r.address, *herdClients, endpointType, names...)
	all.awaitWorking(t, *herdClients)
	all.read(func(v *travels) {
		late := 0
		for _, first := range v.firsts {
			if first > giveUp {
				late++
			}
		}
		t.Logf("%d clients: the first is served after %v, the median after %v, the last after %v; %d streams refused; longest without an answer on one stream %v; %d clients without an answer for %v; the relay's peak memory %d MiB",
			*herdClients, quantile(v.firsts, 0), quantile(v.firsts, 0.5), quantile(v.firsts, 1), v.refusals(t), v.longest.Round(time.Millisecond), late, giveUp, peakMemory(r.cmd.Process.Pid)>>20)
		if v.longest > giveUp {
			t.Errorf("a client waited %v for an answer on its stream: real clients give up after %v", v.longest, giveUp)
		}
	})
	cp.read(func(s *seen) {
		if s.opened != 1 {
			t.Errorf("the control plane saw %d streams, want 1", s.opened)
		}
		for _, name := range names {
			if n := s.requested[topic{endpointType, name}]; n != 1 {
				t.Errorf("the control plane saw %d requests for %s, want 1", n, name)
			}
		}
	})
	metrics := fetch(t, "http://"+r.admin+"/metrics")
	if strings.Contains(metrics, "xds_relay_downstream_admission_waited_total 0\n") && *herdAdmission == flag.Lookup("herd-admission").DefValue {
		t.Error("no client had to wait for admission")
	}
	all.stop()
}

// Three relays behind one address restart one after another. Each client whose stream a draining relay ends
// succeeds with its first attempt to open another, so it is without a stream only for its own backoff. While
// a relay drains, the control plane receives no requests, although the other relays take over its clients. A
// restarted relay requests each name once.
func TestARollingRestart(t *testing.T) {
	names, resources := manyEndpoints(20)
	cp := startControlPlane(t, delta)
	cp.set(resources...)
	config := relayTo(cp.address, "delta") + fmt.Sprintf("drain: {time: %v}\n", *restartDrain)
	start := func() *relay {
		r := startRelay(t, config)
		eventually(t, "the relay is ready", func() error {
			if status, err := readyStatus(r); status != http.StatusOK {
				return fmt.Errorf("/readyz returned %d, %w", status, err)
			}
			return nil
		})
		return r
	}
	relays := []*relay{start(), start(), start()}
	road := startCrossroads(t, relays[0].address, relays[1].address, relays[2].address)
	clients := *restartClients
	all := startRoamers(t, road.address, clients, endpointType, names...)
	all.awaitWorking(t, clients)
	requests := func() (streams, requests int) {
		cp.read(func(s *seen) {
			streams = s.opened
			for _, n := range s.requested {
				requests += n
			}
		})
		return streams, requests
	}
	for i, old := range relays {
		streams, asked := requests()
		if streams != 3+i {
			t.Errorf("before restart %d the control plane had seen %d streams, want %d", i, streams, 3+i)
		}
		if asked != (3+i)*len(names) {
			t.Errorf("before restart %d the control plane had seen requests for %d names, want %d", i, asked, (3+i)*len(names))
		}
		var before int
		all.read(func(v *travels) { before = len(v.ends) })
		old.end(t, syscall.SIGTERM)
		all.awaitWorking(t, clients)
		var ends []time.Time
		all.read(func(v *travels) { ends = slices.Clone(v.ends[before:]) })
		slices.SortFunc(ends, time.Time.Compare)
		if len(ends) == 0 {
			t.Fatalf("relay %d had no clients", i)
		}
		spread := ends[len(ends)-1].Sub(ends[0])
		t.Logf("relay %d closed the connections of %d clients within %v", i, len(ends), spread.Round(time.Millisecond))
		if spread < *restartDrain/2 {
			t.Errorf("relay %d closed the connections of its %d clients within %v, want about %v", i, len(ends), spread, *restartDrain)
		}
		if s, n := requests(); s != streams || n != asked {
			t.Errorf("while relay %d drained, the control plane saw %d new streams and requests for %d names, want none", i, s-streams, n-asked)
		}
		next := start()
		road.replace(old.address, next.address)
		// Another client makes the new relay request the names before the next relay drains.
		c := newClient(t, next, delta, node("first", ""))
		c.subscribe(endpointType, names...)
		c.awaitHas(t, "all resources", resources...)
		c.leave()
	}
	all.read(func(v *travels) {
		t.Logf("clients reconnected %d times; apart from their own backoff, they were without a stream for %v in the median and %v at most; longest without an answer on one stream %v",
			len(v.gaps), quantile(v.gaps, 0.5), quantile(v.gaps, 1), v.longest.Round(time.Millisecond))
		if len(v.failures) > 0 {
			t.Errorf("%d attempts of clients to reconnect failed: %v", len(v.failures), v.failures[0])
		}
		if len(v.gaps) != len(v.ends) {
			t.Errorf("%d streams ended, but clients reconnected %d times", len(v.ends), len(v.gaps))
		}
		if v.longest > giveUp {
			t.Errorf("a client waited %v for an answer on its stream", v.longest)
		}
	})
	all.stop()
}
