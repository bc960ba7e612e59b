package session

// TP1: "Glob": a name is in one directory, and a glob is one directory. Clients decide how
// many names and globs there are, so the relay does not search all names for those of a directory:
// it keeps them by the glob of their directory. It begins that when a glob needs it, as most types
// have none.

// directories are the names of a type by the globs of their directories. The zero value is not in use.
type directories struct {
	byGlob map[string]map[string]*subscription
}

func (d *directories) add(sub *subscription) {
	if d.byGlob == nil {
		return
	}
	glob := directoryOf(sub.name)
	if glob == "" {
		return
	}
	if d.byGlob[glob] == nil {
		d.byGlob[glob] = map[string]*subscription{}
	}
	d.byGlob[glob][sub.name] = sub
}

func (d *directories) remove(name string) {
	if d.byGlob == nil {
		return
	}
	if glob := directoryOf(name); glob != "" {
		if delete(d.byGlob[glob], name); len(d.byGlob[glob]) == 0 {
			delete(d.byGlob, glob)
		}
	}
}

// isMember reports whether a name holds a resource that is a member of its directory's glob.
func (sub *subscription) isMember() bool { return sub.answer.Resource != nil && sub.via == "" }
