package relay

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
}

// observeReloads adds reloads to the admin listener.
func (r *Relay) observeReloads() {
	r.admin.JSON("/config", "which configuration runs, and what is wrong with a newer one", func() any { return r.configStatus() })
	r.admin.Action("/reload", http.HandlerFunc(r.reloadNow))
	r.admin.Upload("/check", maxDocument, r.checkDocument)
}

// byOperator is the requester of a reload over the admin listener.
const byOperator = "POST /reload"

// reloadNow answers an operator's request for a reload, and writes an audit line.
func (r *Relay) reloadNow(w http.ResponseWriter, req *http.Request) {
	before := r.Hash()
	// Do not use the request's context: a reload that has begun must be finished.
	err := r.Load(context.WithoutCancel(req.Context()), byOperator)
	now := r.configStatus()
	outcome := "reloaded"
	if err != nil {
		outcome = "failed"
	}
	if log, ok := r.lineOfReload(&r.reloads.audits, before == now.Hash); ok {
		log.Info("audit: an operator wanted a reload", "operator", operatorOf(req), "peer", req.RemoteAddr, "outcome", outcome, "before", before, "config", now.Hash)
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
