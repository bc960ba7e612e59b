package certs

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/internal/watch"
)

// Store has the credentials of a relay, without duplicates. Its methods may be called concurrently.
//
// One goroutine waits for changes of files and wakes one goroutine for each File, so that a hanging file system
// delays only its own files.
type Store struct {
	log     *slog.Logger
	cancel  context.CancelFunc
	ctx     context.Context // ends with the Store
	running sync.WaitGroup

	making sync.Mutex             // held while an item is made
	index  map[string]*sharedItem // by role and place

	mu      sync.Mutex
	watcher *watch.Watcher // nil before the first file
	items   []followed     // in the order of their first use
	ends    map[followed]context.CancelFunc
}

// sharedItem is an item that several parts may use.
type sharedItem struct {
	value any
	parts map[*Part]struct{} // the parts that use it
}

// Part has the credentials of one listener or one connection. Parts of a Store share files. Its methods may be called
// concurrently, except with Close.
type Part struct {
	*Store
	alone []followed // items that no other part uses; guarded by Store.making
}

// Part returns a part without credentials.
func (s *Store) Part() *Part { return &Part{Store: s} }

// Close stops following the items that no other part uses. Values that were read stay usable.
func (p *Part) Close() {
	p.making.Lock()
	defer p.making.Unlock()
	for key, item := range p.index {
		if _, uses := item.parts[p]; !uses {
			continue
		}
		if delete(item.parts, p); len(item.parts) == 0 {
			delete(p.index, key)
			p.end(item.value.(followed))
		}
	}
	for _, item := range p.alone {
		p.end(item)
	}
	p.alone = nil
}

// followed is a File or an agent.
type followed interface {
	run(ctx context.Context)
	wake()
	statuses() []Status
}

// Status describes the state of a credential.
type Status struct {
	// Role is the purpose of the credential: one of the constants, or the Role of a Kind.
	Role string
	// Path is the file, for a pair the certificate's file, or the address of the SPIFFE agent.
	Path string
	// Expires is when the credential expires. It is zero for one that does not expire, or that does not exist yet.
	Expires time.Time
	// Problem is why the file cannot be used, or the agent cannot be reached. It is empty if there is no problem.
	Problem string
	// Failures counts the failed attempts to read the credential.
	Failures uint64
}

// Roles of credentials.
const (
	RoleListener = "listener" // a certificate that clients see
	RoleAdmin    = "admin"    // a certificate that operators see
	RoleUpstream = "upstream" // a certificate that control planes see
	RoleCA       = "ca"       // certificates that the relay trusts
	RoleToken    = "token"    // a bearer token for control planes
)

// NewStore returns an empty Store.
func NewStore(log *slog.Logger) *Store {
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{log: log, ctx: ctx, cancel: cancel, index: map[string]*sharedItem{}, ends: map[followed]context.CancelFunc{}}
}

// Statuses returns the state of each credential.
func (s *Store) Statuses() []Status {
	s.mu.Lock()
	items := s.items
	s.mu.Unlock()
	var all []Status
	for _, item := range items {
		all = append(all, item.statuses()...)
	}
	return all
}

// CheckListeners returns an error if clients cannot complete a TLS handshake with a listener: its certificate has
// expired, or its SPIFFE agent has not sent one yet.
func (s *Store) CheckListeners() error {
	for _, st := range s.Statuses() {
		switch {
		case st.Role != RoleListener:
		case st.Expires.IsZero():
			return fmt.Errorf("the SPIFFE agent %s has not sent the listener's certificate yet", st.Path)
		case time.Now().After(st.Expires):
			return fmt.Errorf("the listener's certificate %s has expired at %s", st.Path, st.Expires.Format(time.RFC3339))
		}
	}
	return nil
}

// closing is how long Close waits for files that are being read.
const closing = time.Second

// Close stops following all items. Values that were read stay usable.
func (s *Store) Close() {
	s.cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); s.running.Wait() }()
	patience := time.NewTimer(closing)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
		s.log.Warn("files of credentials are still being read")
	}
}

// shared returns the item for a role and place. The first call creates it.
func shared[T followed](p *Part, role, place string, make func() (T, error)) (T, error) {
	p.making.Lock()
	defer p.making.Unlock()
	key := role + "\x00" + place
	if item := p.index[key]; item != nil {
		if value, ok := item.value.(T); ok {
			item.parts[p] = struct{}{}
			return value, nil
		}
	}
	value, err := make()
	if err == nil {
		p.index[key] = &sharedItem{value: value, parts: map[*Part]struct{}{p: {}}}
	}
	return value, err
}

// watch begins to watch the directories of files.
func (s *Store) watch(paths []string) {
	s.mu.Lock()
	first := s.watcher == nil
	if first {
		s.watcher = watch.New(s.log)
	}
	w := s.watcher
	s.mu.Unlock()
	if first {
		s.running.Go(func() { w.Run(s.ctx) })
		s.running.Go(func() { s.wakeOnChanges(w.Arm, w.Changes()) })
	}
	for _, path := range paths {
		w.Add(filepath.Dir(path))
	}
}

// wakeOnChanges wakes all items whenever files may have changed.
func (s *Store) wakeOnChanges(arm func(), changes <-chan struct{}) {
	for watch.UntilChanged(s.ctx, changes) {
		arm() // before the files are read, so that no change is missed
		s.mu.Lock()
		items := s.items
		s.mu.Unlock()
		for _, item := range items {
			item.wake()
		}
	}
}

// add adds an item and runs it until end.
func (s *Store) add(item followed) {
	ctx, end := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = append(s.items[:len(s.items):len(s.items)], item)
	s.ends[item] = end
	s.running.Go(func() { item.run(ctx) })
}

func (s *Store) end(item followed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = slices.DeleteFunc(slices.Clone(s.items), func(other followed) bool { return other == item })
	s.ends[item]()
	delete(s.ends, item)
}
