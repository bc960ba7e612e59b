package operator

// Reloads by the admin listener.

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// ErrBuiltIn is the error of a reload if the relay runs without a configuration file.
var ErrBuiltIn = errors.New("the relay was started without a configuration file, so there is nothing to load")

// ConfigStatus identifies the running configuration, as /config shows it.
type ConfigStatus struct {
	// Hash identifies the content: it is the same for all relays with this configuration.
	Hash string `json:"hash"`
	// Loaded is when it was loaded.
	Loaded time.Time `json:"loaded"`
	// Failures counts the failed reloads since the start. Problem says what is wrong with the newest configuration if
	// that could not be loaded.
	Failures uint64 `json:"failures"`
	Problem  string `json:"problem,omitempty"`
	// Changes is what the last successful reload has changed, in words, for the log.
	Changes string `json:"-"`
}

// observeReloads adds reloads to the admin listener.
func (r *Observer) observeReloads() {
	r.Admin.JSON("/config", "which configuration runs, and what is wrong with a newer one", func() any { return r.Process.Config() })
	r.Admin.Action("/reload", http.HandlerFunc(r.reloadNow))
	r.Admin.Upload("/check", maxDocument, r.checkDocument)
}

// ByOperator is the requester of a reload over the admin listener.
const ByOperator = "POST /reload"

// reloadNow answers an operator's request for a reload, and writes an audit line.
func (r *Observer) reloadNow(w http.ResponseWriter, req *http.Request) {
	before := r.now().Config.Hash()
	// Do not use the request's context: a reload that has begun must be finished.
	err := r.Process.Load(context.WithoutCancel(req.Context()), ByOperator)
	now := r.Process.Config()
	outcome, changed := "reloaded", now.Changes
	if err != nil {
		outcome, changed = "failed", ""
	}
	log, ok := r.Log, true
	if before == now.Hash {
		log, ok = r.unchanged.Next(r.Log)
	}
	if ok {
		log.Info("audit: an operator wanted a reload", "operator", Caller(req), "peer", req.RemoteAddr, "outcome", outcome, "before", before, "config", now.Hash, "changes", changed, "event", "reload")
	}
	switch {
	case errors.Is(err, ErrBuiltIn):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, ErrShuttingDown):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	default:
		writeJSON(w, now)
	}
}

// ErrShuttingDown is the error of a reload while the relay shuts down.
var ErrShuttingDown = errors.New("the relay is shutting down")
