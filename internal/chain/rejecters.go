package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// This file has what a relay says of its clients when it passes their rejections on to another relay.

// maxWhos bounds the identities that one NACK names.
const maxWhos = 16

// Rejecters are the identities or addresses behind a relay that reject something. The relay upstream does not know them,
// and the relay itself is not to blame for them.
type Rejecters struct {
	Whos []string // hashes
	// Others is how many others behind the relay outweigh one that rejects it alone: none if most clients share it.
	Others int
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
	return fmt.Sprintf("[rejected by %s beside %d] %s", strings.Join(r.Whos[:min(len(r.Whos), maxWhos)], ","), r.Others, words)
}

// CutRejecters undoes Words.
func CutRejecters(words string) (r Rejecters, rest string) {
	head, rest, ok := strings.Cut(words, "] ")
	if !ok {
		return Rejecters{}, words
	}
	var whos string
	if n, err := fmt.Sscanf(head, "[rejected by %s beside %d", &whos, &r.Others); n != 2 || err != nil || r.Others < 0 {
		return Rejecters{}, words
	}
	r.Whos = strings.Split(whos, ",")
	if len(r.Whos) > maxWhos || slices.ContainsFunc(r.Whos, func(who string) bool { return len(who) != len(HashOf("")) }) {
		return Rejecters{}, words
	}
	return r, rest
}
