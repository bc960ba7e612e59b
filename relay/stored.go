package relay

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/store"
)

// The store of accepted resources.

// sharedStore is an open store. It is closed when no generation and no origin uses it. A nil sharedStore is no store.
type sharedStore struct {
	*store.Store
	path    string
	started time.Time
	wait    atomic.Int64 // store.wait, a time.Duration
	log     *slog.Logger
	uses    atomic.Int64
	closed  chan struct{}
}

// keeps returns the options of keepers that write to the store.
func (s *sharedStore) keeps() store.KeeperOptions {
	return store.KeeperOptions{Started: s.started, Wait: func() time.Duration { return time.Duration(s.wait.Load()) }}
}

// use returns the store, and counts one more use.
func (s *sharedStore) use() *sharedStore {
	if s != nil {
		s.uses.Add(1)
	}
	return s
}

// useAgain is like use, for a store that may be closed by now. Then it returns false, after the file is free.
func (s *sharedStore) useAgain() bool {
	for n := s.uses.Load(); n > 0; n = s.uses.Load() {
		if s.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
	<-s.closed
	return false
}

// leave ends a use.
func (s *sharedStore) leave() {
	if s == nil || s.uses.Add(-1) > 0 {
		return
	}
	defer close(s.closed)
	if err := s.Close(); err != nil {
		s.log.Error("the store could not be closed", "path", s.path, "reason", err)
	}
}

// fingerprint returns a text that identifies the store.
func (s *sharedStore) fingerprint() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%p", s)
}

// openStore opens the configured store with one use; it returns nil if none is configured.
func openStore(cfg configs.Store, c *cache.Cache, topics func(yield func(cache.Key)), log *slog.Logger) (*sharedStore, error) {
	if cfg.Path == "" {
		return nil, nil
	}
	o := store.Options{MaxBytes: int64(cfg.MaxBytes), MaxAge: cfg.MaxAge, Topics: topics, Contents: c.Contents, Watched: c.Has, Log: log}
	if cfg.KeyFile != "" {
		var err error
		if o.Key, err = store.ReadKey(cfg.KeyFile); err != nil {
			return nil, fmt.Errorf("store.key_file: %w", err)
		}
	}
	s, err := store.Open(cfg.Path, o)
	if err != nil {
		return nil, fmt.Errorf("store.path: %w", err)
	}
	shared := &sharedStore{Store: s, path: cfg.Path, closed: make(chan struct{}), started: time.Now(), log: log}
	shared.wait.Store(int64(cfg.Wait))
	return shared.use(), nil
}

// configureStore applies the settings of a generation's store, also to topics that wait.
func (s *origins) configureStore(g *generation) {
	if g.store == nil {
		return
	}
	cfg := g.cfg.Store
	g.store.Configure(cfg.MaxAge, int64(cfg.MaxBytes))
	if g.store.wait.Swap(int64(cfg.Wait)) == int64(cfg.Wait) {
		return
	}
	s.mu.Lock()
	open := maps.Clone(s.streams)
	s.mu.Unlock()
	for _, of := range open {
		of.Wake()
	}
}

// storedTopics yields the topics that the cache has of the scopes with servers: the store is for those.
func (s *origins) storedTopics(c *cache.Cache) func(yield func(cache.Key)) {
	return func(yield func(cache.Key)) {
		s.mu.Lock()
		scopes := slices.Collect(maps.Keys(s.streams))
		s.mu.Unlock()
		for _, scope := range scopes {
			c.EachTopic(scope, yield)
		}
	}
}

// stale returns how many topics of each scope are served from the store.
func (s *origins) stale() map[cache.Scope]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := map[cache.Scope]int{}
	for scope, of := range s.streams {
		if n := of.Stale(); n > 0 {
			stale[scope] = n
		}
	}
	return stale
}

// storeInstruments returns the metrics of the store, if there is one.
func (r *Relay) storeInstruments() []instrument {
	stats := func(of func(store.Stats) uint64) func() []admin.Sample {
		return func() []admin.Sample {
			if s := r.now().store; s != nil {
				return []admin.Sample{{Value: int64(of(s.Stats()))}}
			}
			return nil
		}
	}
	return []instrument{
		{r.metrics.Gauge, "xds_relay.store.stale_topics", "Names, wildcards and globs that the relay serves from the store because no control plane has answered since the start.", r.staleTopics},
		{r.metrics.Gauge, "xds_relay.store.bytes", "Size of the store in bytes.", stats(func(s store.Stats) uint64 { return uint64(s.Size) })},
		{r.metrics.Gauge, "xds_relay.store.pending", "Records that wait to be written to the store.", stats(func(s store.Stats) uint64 { return uint64(s.Pending) })},
		{r.metrics.Counter, "xds_relay.store.records_written", "Records written to the store or deleted from it.", stats(func(s store.Stats) uint64 { return s.Written })},
		{r.metrics.Counter, "xds_relay.store.failed_commits", "Transactions that the relay could not write to the store.", stats(func(s store.Stats) uint64 { return s.Failures })},
		{r.metrics.Counter, "xds_relay.store.not_stored", "Resources that the relay did not store.", r.notStored},
		{r.metrics.Counter, "xds_relay.store.unreadable_records", "Records in the store that the relay could not read.", stats(func(s store.Stats) uint64 { return s.Unreadable })},
		{r.metrics.Counter, "xds_relay.store.files_set_aside", "Files that the relay could not use as its store, at its start or later, and renamed.", stats(func(s store.Stats) uint64 { return s.SetAside })},
	}
}

func (r *Relay) staleTopics() []admin.Sample {
	count, now := map[string]int64{}, r.now()
	if now.store == nil {
		return nil
	}
	for _, a := range now.cfg.Authorities {
		if len(a.Servers) > 0 {
			count[a.Name] = 0
		}
	}
	for scope, n := range r.origins.stale() {
		if a, ok := now.router.Source(scope); ok {
			count[a.Name] += int64(n)
		}
	}
	samples := make([]admin.Sample, 0, len(count))
	for authority, n := range count {
		samples = append(samples, admin.Sample{Value: n, Labels: []attribute.KeyValue{authorityLabel(authority)}})
	}
	return samples
}

func (r *Relay) notStored() []admin.Sample {
	of := r.now().store
	if of == nil {
		return nil
	}
	s := of.Stats()
	sample := func(reason string, n uint64) admin.Sample {
		return admin.Sample{Value: int64(n), Labels: []attribute.KeyValue{attribute.String("reason", reason)}}
	}
	return []admin.Sample{sample("max_bytes", s.Lacking), sample("secret", s.Secrets)}
}
