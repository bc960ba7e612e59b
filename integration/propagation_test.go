package integration

// The time that changes take to reach clients: the relay's own histograms, compared with independent clocks
// of the control plane and of clients.

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// probe is a client with a clock. It waits before it reads a response, and before it answers the response.
type probe struct {
	client          *client
	reads, answers  time.Duration
	received, acked []time.Time // when it received and acknowledged each change
}

// take reads a response and answers it.
func (p *probe) take() error {
	<-time.After(p.reads)
	r, err := p.client.speak.receive()
	if err != nil {
		return err
	}
	p.received = append(p.received, time.Now())
	<-time.After(p.answers)
	p.acked = append(p.acked, time.Now())
	return p.client.speak.ack(&r)
}

// probed has, by stage and client, the time that each change took. The client is the first, the median or the
// last.
type probed map[string][]time.Duration

func (p probed) note(stage string, sent time.Time, times []time.Time) {
	slices.SortFunc(times, time.Time.Compare)
	for client, i := range map[string]int{"first": 0, "median": (len(times)+1)/2 - 1, "last": len(times) - 1} {
		p[stage+" "+client] = append(p[stage+" "+client], times[i].Sub(sent))
	}
}

// histogramSums returns the sums and the counts of the propagation histogram, by stage and client.
func histogramSums(t *testing.T, r *relay) (sums, counts map[string]float64) {
	t.Helper()
	sums, counts = map[string]float64{}, map[string]float64{}
	for line := range strings.Lines(fetch(t, "http://"+r.admin+"/metrics")) {
		name, rest, _ := strings.Cut(line, "{")
		into := map[string]map[string]float64{"xds_relay_propagation_duration_seconds_sum": sums, "xds_relay_propagation_duration_seconds_count": counts}[name]
		if into == nil {
			continue
		}
		label := func(name string) string {
			_, value, _ := strings.Cut(rest, name+`="`)
			value, _, _ = strings.Cut(value, `"`)
			return value
		}
		v, err := strconv.ParseFloat(strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		into[label("stage")+" "+label("client")] += v
	}
	return sums, counts
}

// TestPropagationIsWhatClocksOfOthersSay checks that the relay's mean times of the first, the median and the
// last client differ by at most 10 % from those that the control plane and the clients measure. The
// measurements differ by the latency between the processes, and by the time that a process waits for a CPU.
// To make these differences small in comparison, the clients are slow: a response is larger than the buffers
// of a connection, so the relay cannot send it before the client reads.
func TestPropagationIsWhatClocksOfOthersSay(t *testing.T) {
	const clients, changes, name = 9, 5, "large"
	plane := startHandmade(t)
	r := startRelay(t, relayTo(plane.address, "delta"))
	var probes []*probe
	for i := range clients {
		form := []form{delta, sotw}[i%2]
		p := &probe{client: openClient(t, connect(t, r.address), form, node(fmt.Sprint("probe-", i), ""))}
		p.client.subscribe(endpointType, name)
		probes = append(probes, p)
	}
	stream := plane.stream(t)
	stream.awaitAsked(t, endpointType, name)
	resource := func(change int) *discoveryv3.Resource {
		m := plainEndpoints(name, uint32(change+1))
		m.Endpoints[0].Locality.SubZone = strings.Repeat("x", 160<<10)
		return &discoveryv3.Resource{Name: name, Version: strconv.Itoa(change), Resource: toAny(t, m)}
	}
	// change sends a change, and waits until all clients have answered it.
	change := func(n int) (sent time.Time) {
		resource := resource(n)
		sent = time.Now()
		var taking sync.WaitGroup
		errs := make([]error, clients)
		for i, p := range probes {
			taking.Go(func() { errs[i] = p.take() })
		}
		if nack := stream.respond(t, endpointType, strconv.Itoa(n), resource); nack != "" {
			t.Fatal(nack)
		}
		taking.Wait()
		for i, err := range errs {
			if err != nil {
				t.Fatalf("client %d: %v", i, err)
			}
		}
		return sent
	}
	// measured waits until the relay has measured n changes at all stages.
	measured := func(n float64) (sums map[string]float64) {
		eventually(t, fmt.Sprintf("the relay has measured %v changes", n), func() error {
			var counts map[string]float64
			sums, counts = histogramSums(t, r)
			if len(counts) != 6 {
				return fmt.Errorf("the histogram has %v", counts)
			}
			for key, count := range counts {
				if count != n {
					return fmt.Errorf("the histogram has %v changes for %s", count, key)
				}
			}
			return nil
		})
		return sums
	}
	change(0) // the first answer to the subscription
	before := measured(1)
	for i, p := range probes {
		p.reads, p.answers = 800*time.Millisecond+time.Duration(i)*30*time.Millisecond, 300*time.Millisecond
		p.received, p.acked = nil, nil
	}
	times := probed{}
	for n := range changes {
		sent := change(n + 1)
		var received, acked []time.Time
		for _, p := range probes {
			received, acked = append(received, p.received[n]), append(acked, p.acked[n])
		}
		times.note("sent", sent, received)
		times.note("acked", sent, acked)
	}
	sums := measured(1 + changes)
	var report bytes.Buffer
	for _, stage := range []string{"sent", "acked"} {
		for _, client := range []string{"first", "median", "last"} {
			key := stage + " " + client
			var clocks time.Duration
			for _, d := range times[key] {
				clocks += d / changes
			}
			relay := time.Duration((sums[key] - before[key]) / changes * float64(time.Second))
			off := relay.Seconds()/clocks.Seconds() - 1
			fmt.Fprintf(&report, "%-12s relay %v, clocks %v: %+.1f %%\n", key, relay.Round(10*time.Microsecond), clocks.Round(10*time.Microsecond), 100*off)
			if math.Abs(off) > 0.1 {
				t.Errorf("%s: the relay measured %v, and the clocks %v", key, relay, clocks)
			}
		}
	}
	t.Logf("means of %d changes:\n%s", changes, &report)
}
