package integration

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// canary is a well-behaved client whose resource changes all the time, and a control: the same client at a
// relay that is not attacked.
type canary struct {
	plane           *controlPlane
	client, control *client
	version         uint32
}

const (
	canaryName = "canary"
	// canaryPace is how often its resource changes.
	canaryPace = 100 * time.Millisecond
)

func startCanary(t *testing.T, cp *controlPlane, of, control *relay) *canary {
	t.Helper()
	c := &canary{plane: cp, client: newClient(t, of, delta, node(canaryName, "")), control: newClient(t, control, delta, node(canaryName, ""))}
	for _, client := range []*client{c.client, c.control} {
		client.subscribe(endpointType, canaryName)
	}
	return c
}

// delays are the times from a change at the control plane to its arrival at the client of each relay.
type delays []struct{ client, control time.Duration }

// percentiles returns the 99th percentiles of each.
func (d delays) percentiles() (client, control time.Duration) { return d.at(99) }

// medians returns the medians. Pauses of the machine hardly affect them.
func (d delays) medians() (client, control time.Duration) { return d.at(50) }

func (d delays) at(percentile int) (client, control time.Duration) {
	at := func(of func(int) time.Duration) time.Duration {
		var all []time.Duration
		for i := range d {
			all = append(all, of(i))
		}
		slices.Sort(all)
		return all[(len(all)-1)*percentile/100]
	}
	return at(func(i int) time.Duration { return d[i].client }), at(func(i int) time.Duration { return d[i].control })
}

// updates changes the resource n times, and waits until both clients have each change.
func (c *canary) updates(t *testing.T, n int) (all delays) {
	t.Helper()
	pace := time.NewTicker(canaryPace)
	defer pace.Stop()
	for range n {
		all = append(all, c.update(t))
		<-pace.C
	}
	return all
}

// watch changes the resource until ctx ends.
func (c *canary) watch(ctx context.Context, t *testing.T) (all delays) {
	t.Helper()
	for ctx.Err() == nil {
		all = append(all, c.updates(t, 1)...)
	}
	return all
}

func (c *canary) update(t *testing.T) (took struct{ client, control time.Duration }) {
	t.Helper()
	c.version++
	want := plainEndpoints(canaryName, c.version)
	began := time.Now()
	var waiting sync.WaitGroup
	wait := func(client *client, took *time.Duration) {
		waiting.Go(func() {
			client.awaitHas(t, "the newest version", want)
			*took = time.Since(began)
		})
	}
	wait(c.client, &took.client)
	wait(c.control, &took.control)
	c.plane.set(want)
	waiting.Wait()
	return took
}
