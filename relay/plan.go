package relay

// What a configuration would change in the running relay. It plans a reload and does not commit it.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/store"
)

// checks serializes checks of configurations.
type checks struct {
	parse func(name string, text []byte) (*configs.Config, error)
	// one is held during a check, because each uses much CPU time.
	one sync.Mutex
}

// planChanges returns what a configuration would change, and the generation that it would be, of which only the
// router and the rights can be used. It closes everything that it opens.
func (r *Relay) planChanges(ctx context.Context, name string, text []byte) (_ *operator.Changes, _ *nameCheck, err error) {
	r.reloading.Lock() // parse must not run concurrently either
	defer r.reloading.Unlock()
	if r.ended {
		return nil, nil, operator.ErrShuttingDown
	}
	before := r.now()
	changes := &operator.Changes{Running: before.cfg.Hash()}
	cfg, err := r.checks.parse(name, text)
	if err != nil {
		changes.Errors = errorsOf(err)
		return changes, nil, nil
	}
	changes.Checked = cfg.Hash()
	for _, w := range slices.Concat(cfg.Warnings(), cfg.FileWarnings()) {
		changes.Warnings = append(changes.Warnings, errorOf(w))
	}
	problem := r.checkNewStore(cfg, before)
	// Do not open another store: that would create it, or set it aside if it cannot be read.
	planned := *cfg
	planned.Store = before.cfg.Store
	p, err := r.plan(ctx, &planned)
	if err != nil || problem != nil {
		if err == nil {
			r.undo(p)
		}
		changes.Errors = slices.Concat(errorsOf(err), errorsOf(problem))
		return changes, nil, nil
	}
	defer r.undo(p)
	check := r.compareListeners(changes, p)
	check.before, check.after = before, p.generation
	changes.Authorities = compareAuthorities(before, p.generation, before.cfg.Store.Path != cfg.Store.Path)
	for _, key := range differingKeys(*before.cfg, *cfg) {
		if key != "listeners" && key != "authorities" {
			changes.Keys = append(changes.Keys, key)
		}
	}
	return changes, check, nil
}

// checkNewStore returns why the store of a configuration cannot be used.
func (r *Relay) checkNewStore(cfg *configs.Config, before *generation) error {
	switch {
	case cfg.Store.Path == "":
		return nil
	case before.store != nil && before.store.path == cfg.Store.Path: // it is open, so this opens nothing
		opened, _, err := r.planStore(cfg, before)
		opened.leave()
		return err
	}
	if _, err := os.Stat(filepath.Dir(cfg.Store.Path)); err != nil {
		return cfg.Errorf("store.path", "%w", err)
	}
	var key *store.Key
	if cfg.Store.KeyFile != "" {
		var err error
		if key, err = store.ReadKey(cfg.Store.KeyFile); err != nil {
			return cfg.Errorf("store.key_file", "%w", err)
		}
	}
	if _, _, err := store.Check(cfg.Store.Path, key, r.log); errors.Is(err, store.ErrInUse) {
		return cfg.Errorf("store", "%w", err)
	}
	return nil // an unreadable store would be set aside
}

// compareListeners notes how the listeners change, and returns how their streams would then be served.
func (r *Relay) compareListeners(changes *operator.Changes, p *planned) *nameCheck {
	check := newNameCheck(p.listeners)
	streams := &operator.StreamChanges{Open: r.server.Clients()}
	changes.Streams = streams
	for _, l := range p.listeners {
		if l.peers {
			continue // it is in the keys of the fleet
		}
		c := operator.ListenerChange{Address: l.listener.address, Streams: l.listener.door.Streams()}
		l.listener.mu.Lock()
		was := l.listener.config
		l.listener.mu.Unlock()
		switch {
		case l.isNew:
			c.Change = operator.ChangeAdded
			c.Address = l.config.Address // not l.listener.address: if the port is 0, a reload would open another one
		default:
			c.Change, c.NewConnections = operator.ChangeChanged, l.server != nil
			if c.Keys = differingKeys(*was, *l.config); len(c.Keys) == 0 && l.server == nil {
				continue
			}
		}
		changes.Listeners = append(changes.Listeners, c)
	}
	for _, l := range r.openListeners() {
		if _, stays := check.listeners[l.door]; stays || l.peers {
			continue
		}
		n := l.door.Streams()
		streams.EndWithListener += n
		changes.Listeners = append(changes.Listeners, operator.ListenerChange{Address: l.address, Change: operator.ChangeRemoved, Streams: n})
	}
	return check
}

// compareAuthorities returns how the authorities change. otherStore says that the store changes.
func compareAuthorities(before, after *generation, otherStore bool) (changes []operator.AuthorityChange) {
	of := func(g *generation) map[string]*configs.Authority {
		all := map[string]*configs.Authority{}
		for i := range g.cfg.Authorities {
			all[g.cfg.Authorities[i].Name] = &g.cfg.Authorities[i]
		}
		return all
	}
	was, is := of(before), of(after)
	for i := range after.cfg.Authorities {
		a := &after.cfg.Authorities[i]
		old := was[a.Name]
		if old == nil {
			changes = append(changes, operator.AuthorityChange{Authority: a.Name, Change: operator.ChangeAdded})
			continue
		}
		c := operator.AuthorityChange{Authority: a.Name, Change: operator.ChangeChanged, Keys: differingKeys(*old, *a)}
		c.NewStreams = before.origins[a.Name].fingerprint != after.origins[a.Name].fingerprint || otherStore && a.Directory == ""
		if len(c.Keys) > 0 || c.NewStreams {
			changes = append(changes, c)
		}
	}
	for i := range before.cfg.Authorities {
		if name := before.cfg.Authorities[i].Name; is[name] == nil {
			changes = append(changes, operator.AuthorityChange{Authority: name, Change: operator.ChangeRemoved})
		}
	}
	return changes
}

// differingKeys returns the keys whose values differ between two parts of configurations of the same type.
func differingKeys(a, b any) (keys []string) {
	was, is := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range was.NumField() {
		f := was.Type().Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if f.IsExported() && key != "" && key != "-" && configs.Fingerprint(was.Field(i).Interface()) != configs.Fingerprint(is.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// errorsOf returns the mistakes in an error.
func errorsOf(err error) (all []operator.ConfigError) {
	var list configs.Errors
	var one configs.Error
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, e := range list {
			all = append(all, errorOf(e))
		}
	case errors.As(err, &one):
		all = append(all, errorOf(one))
	default:
		all = append(all, operator.ConfigError{Problem: err.Error()})
	}
	return all
}

func errorOf(e configs.Error) operator.ConfigError {
	return operator.ConfigError{File: e.File, Line: e.Line, Column: e.Column, Key: e.Path, Problem: e.Err.Error()}
}

// Check returns what a configuration would change, and changes nothing. name is for errors. It counts clients' names
// for countFor at most.
func (r *Relay) Check(ctx context.Context, name string, text []byte) (*operator.Changes, error) {
	if r.checks.parse == nil || r.files != nil {
		return nil, operator.ErrBuiltIn
	}
	if !r.checks.one.TryLock() {
		return nil, operator.ErrBusy
	}
	defer r.checks.one.Unlock()
	changes, check, err := r.planChanges(ctx, name, text)
	if err != nil || check == nil {
		return changes, err
	}
	ctx, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	r.countNames(ctx, changes, check)
	return changes, nil
}

// countFor bounds the time for counting names.
const countFor = 5 * time.Second

// difference says in words in what the configuration of a planned generation differs from the one before. It has keys,
// and no values.
func (r *Relay) difference(before *generation, p *planned) string {
	changes := &operator.Changes{}
	r.compareListeners(changes, p)
	after := p.generation.cfg
	var parts []string
	part := func(kind, name, change string, keys []string) {
		text := kind + " " + name + " " + change
		if len(keys) > 0 {
			text += " (" + strings.Join(keys, ", ") + ")"
		}
		parts = append(parts, text)
	}
	for _, c := range changes.Listeners {
		part("listener", c.Address, c.Change, c.Keys)
	}
	for _, c := range compareAuthorities(before, p.generation, before.cfg.Store.Path != after.Store.Path) {
		part("authority", c.Authority, c.Change, c.Keys)
	}
	for _, key := range differingKeys(*before.cfg, *after) {
		if key != "listeners" && key != "authorities" {
			parts = append(parts, key+" "+operator.ChangeChanged)
		}
	}
	return strings.Join(parts, "; ")
}
