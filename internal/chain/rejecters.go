package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// This file has what a relay says of its clients when it passes their rejections on to another relay.

const (
	// maxWhos bounds the identities that one NACK names.
	maxWhos = 16
	// maxCohort bounds the name of a cohort as it is sent, in bytes. All of them fit into what relays read of a NACK.
	maxCohort = 64
)

// Rejecters are the identities or addresses behind a relay that reject something. The relay upstream does not know them,
// and the relay itself is not to blame for them.
type Rejecters struct {
	Whos []Rejecter
	// Others is how many others behind the relay outweigh one that rejects it alone: none if most clients share it.
	Others int
}

// Rejecter is one identity or address that rejects something.
type Rejecter struct {
	Who string // its hash
	// Cohort is that of its clients that reject it, by the default of a rollout's `cohort`: their user agent. It is empty
	// if they have several, or a long one.
	Cohort string
}

// HashOf returns an identity or address as relays speak of it.
func HashOf(who string) string {
	const bytes = 8
	sum := sha256.Sum256([]byte(who))
	return hex.EncodeToString(sum[:bytes])
}

// Words returns the words of a NACK that says who rejects something. They come first: words may be cut at their end.
func (r Rejecters) Words(words string) string {
	if len(r.Whos) == 0 {
		return words
	}
	var whos, cohorts []string
	for _, is := range r.Whos[:min(len(r.Whos), maxWhos)] {
		whos, cohorts = append(whos, is.Who), append(cohorts, escapeCohort(is.Cohort))
	}
	return fmt.Sprintf("[rejected by %s beside %d of %s] %s", strings.Join(whos, ","), r.Others, strings.Join(cohorts, ","), words)
}

// escapeCohort returns the name of a cohort without the characters that have a meaning in Words, "" if it is too long.
func escapeCohort(cohort string) string {
	if len(cohort) > maxCohort {
		return ""
	}
	if cohort = url.QueryEscape(cohort); len(cohort) > maxCohort {
		return ""
	}
	return cohort
}

// CutRejecters undoes Words.
func CutRejecters(words string) (r Rejecters, rest string) {
	head, rest, ok := strings.Cut(words, "] ")
	if !ok {
		return Rejecters{}, words
	}
	head, of, _ := strings.Cut(head, " of ") // not from a relay of an earlier version
	var whos string
	if n, err := fmt.Sscanf(head, "[rejected by %s beside %d", &whos, &r.Others); n != 2 || err != nil || r.Others < 0 {
		return Rejecters{}, words
	}
	cohorts := strings.Split(of, ",")
	for i, who := range strings.Split(whos, ",") {
		is := Rejecter{Who: who}
		if i < len(cohorts) && len(cohorts[i]) <= maxCohort {
			is.Cohort, _ = url.QueryUnescape(cohorts[i]) // empty if that fails
		}
		if r.Whos = append(r.Whos, is); len(r.Whos) > maxWhos || len(who) != len(HashOf("")) {
			return Rejecters{}, words
		}
	}
	return r, rest
}
