package rights

import (
	"math"
	"slices"
	"strings"
)

// finder finds the first of many conditions that is not false for a name. It has an index of the conditions that
// require certain names or prefixes. It tries the others one by one.
type finder struct {
	conditions []numbered // in order
	whole      map[string][]int
	beginnings beginnings
	others     []int // indices in conditions, in order
}

// numbered is the residual of a rule's when.
type numbered struct {
	rule int
	when residual
}

// found is the first rule whose when is not false.
type found struct {
	rule int // noRule if there is none
	when truth
}

const noRule = math.MaxInt

var foundNone = found{rule: noRule, when: isFalse}

func newFinder(conditions []numbered) finder {
	f := finder{conditions: conditions}
	begin := map[string][]int{}
	for i, c := range conditions {
		texts, ok := demands(c.when)
		if !ok {
			f.others = append(f.others, i)
			continue
		}
		for _, text := range texts {
			switch {
			case !text.whole:
				begin[text.text] = append(begin[text.text], i)
			case f.whole == nil:
				f.whole = map[string][]int{text.text: {i}}
			default:
				f.whole[text.text] = append(f.whole[text.text], i)
			}
		}
	}
	f.beginnings = newBeginnings(begin)
	return f
}

// first returns the first rule before limit whose when is not false.
func (f *finder) first(name string, limit int) found {
	if len(f.conditions) == 0 {
		return foundNone
	}
	is := found{rule: limit, when: isFalse}
	if len(f.whole) > 0 {
		f.firstOf(f.whole[name], name, &is)
	}
	for i := f.beginnings.last(name); i >= 0; i = f.beginnings.within[i] {
		if strings.HasPrefix(name, f.beginnings.texts[i]) {
			f.firstOf(f.beginnings.at[i], name, &is)
		}
	}
	f.firstOf(f.others, name, &is)
	if is.rule == limit {
		return foundNone
	}
	return is
}

// firstOf searches for a rule before the one that was found.
func (f *finder) firstOf(conditions []int, name string, is *found) {
	for _, i := range conditions {
		c := &f.conditions[i]
		if c.rule >= is.rule {
			return
		}
		if t := c.when.of(name); t != isFalse {
			*is = found{c.rule, t}
			return
		}
	}
}

// costly reports whether remembering a result is cheaper than finding it again.
func (f *finder) costly() bool {
	return len(f.others) > fewRules ||
		slices.ContainsFunc(f.conditions, func(c numbered) bool { return evaluates(c.when) })
}

// demand is a text that a name must equal (whole) or begin with.
type demand struct {
	text  string
	whole bool
}

// demands returns texts. A name must match one of them, or the condition is false. It returns false if there are no
// such texts. CEL: "Logical Operators": false && error is false.
func demands(r residual) ([]demand, bool) {
	switch r := r.(type) {
	case *textOf:
		if r.how == equals || r.how == startsWith {
			return []demand{{r.text, r.how == equals}}, true
		}
	case *namesIn:
		var all []demand
		for name := range r.names {
			all = append(all, demand{name, true})
		}
		return all, true
	case *bothOf:
		a, okA := demands(r.a)
		b, okB := demands(r.b)
		switch {
		case r.either:
			return append(a, b...), okA && okB
		case !okA, okB && len(b) < len(a):
			return b, okB
		}
		return a, okA
	}
	return nil, false
}

// beginnings finds the texts that a name begins with.
type beginnings struct {
	common string   // the prefix that all texts share
	texts  []string // sorted
	at     [][]int  // by text
	// within has for each text the index of the longest other text that it begins with, -1 if there is none.
	within []int
}

func newBeginnings(at map[string][]int) (b beginnings) {
	for text := range at {
		b.texts = append(b.texts, text)
	}
	slices.Sort(b.texts)
	for i, text := range b.texts {
		b.at = append(b.at, at[text])
		within := i - 1
		for within >= 0 && !strings.HasPrefix(text, b.texts[within]) {
			within = b.within[within]
		}
		b.within = append(b.within, within)
	}
	if n := len(b.texts); n > 0 {
		first, last := b.texts[0], b.texts[n-1]
		same := 0
		for same < len(first) && same < len(last) && first[same] == last[same] {
			same++
		}
		b.common = first[:same]
	}
	return b
}

// last returns the index of the last text in sort order that is not after the name. All texts that the name begins
// with are that one, or reached from it by within.
func (b *beginnings) last(name string) int {
	if len(b.texts) == 0 || !strings.HasPrefix(name, b.common) {
		return -1
	}
	i, is := slices.BinarySearch(b.texts, name)
	if !is {
		i--
	}
	return i
}
