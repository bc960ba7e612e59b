package session

import "slices"

// claims are the requested aliases that resources list. The zero value is empty.
type claims struct {
	of map[string]map[string]struct{} // aliases, by the resource's name
	by map[string][]string            // resources, by the alias; the newest comes last
	// more are the aliases that forgotten resources may also list.
	more map[string]struct{}
}

// maxClaims is how many resources with one alias are remembered, the newest. When none of them
// lists the alias any more, the relay requests the name again.
const maxClaims = 16

// has reports whether a resource lists an alias.
func (c *claims) has(own, alias string) bool {
	_, ok := c.of[own][alias]
	return ok
}

// add notes that a resource lists an alias, and was the last one to do so.
func (c *claims) add(own, alias string) {
	c.remove(own, alias)
	if c.of == nil {
		c.of, c.by = map[string]map[string]struct{}{}, map[string][]string{}
	}
	if c.of[own] == nil {
		c.of[own] = map[string]struct{}{}
	}
	c.of[own][alias] = struct{}{}
	c.by[alias] = append(c.by[alias], own)
	if len(c.by[alias]) > maxClaims {
		c.remove(c.by[alias][0], alias)
		if c.more == nil {
			c.more = map[string]struct{}{}
		}
		c.more[alias] = struct{}{}
	}
}

// remove notes that a resource no longer lists an alias.
func (c *claims) remove(own, alias string) {
	if !c.has(own, alias) {
		return
	}
	if delete(c.of[own], alias); len(c.of[own]) == 0 {
		delete(c.of, own)
	}
	c.by[alias] = slices.DeleteFunc(c.by[alias], func(o string) bool { return o == own })
	if len(c.by[alias]) == 0 {
		delete(c.by, alias)
	}
}
