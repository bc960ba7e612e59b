package session

// TP1: "Glob": a name is in one directory, and a glob is one directory. Clients choose how
// many there are of both, so the names of a directory are not looked for among all names: they
// are kept by the glob of their directory. That is not begun before there is a glob that needs
// it, as most types have none.

// directories are the names of a type by their directories. The zero value is not begun.
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

// isMember says that a name holds a resource which is a member of its directory's glob.
func (sub *subscription) isMember() bool { return sub.answer.Resource != nil && sub.via == "" }
