package client

// AddEventHandler adds a handler of the view, as Informer.AddEventHandler does:
// it is told of the preferred copy of each object. A copy that comes to hide
// another, as when the object moves to another shard, is an update, or, if it is
// of another object of that name, a deletion and an addition.
//
// What a shard has there counts for handlers whether or not the shard does:
// look up what is wanted, instead of keeping what a handler was told.
func (d *Dual[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	d.own.mu.Lock()
	defer d.own.mu.Unlock()
	return d.handlers.add(d.own.mu, h, options, d.own.HasSynced(), d.visible)
}

// visible are all that handlers have been told of, under the lock.
func (d *Dual[T]) visible(visit func(Key, T) bool) {
	for _, obj := range d.own.store.list() {
		if !visit(KeyOf(obj), obj) {
			return
		}
	}
	if d.others == nil {
		return
	}
	for _, obj := range d.others.store.list() {
		key := d.others.KeyOf(obj)
		shard := key.Shard
		key.Shard = ""
		if _, hidden := d.own.store.get(key); hidden {
			continue
		}
		if best, _ := d.best(key, allMembers); best.shard == shard && !visit(key, obj) {
			return
		}
	}
}

func allMembers(string) Standing { return Member }

// ownChanged tells the handlers of a change of the own informer, under the lock.
func (d *Dual[T]) ownChanged(c change[T]) {
	if c.had != c.has {
		if other, found := d.best(c.key, allMembers); found {
			if c.has {
				d.replaced(c, other, copyOf[T]{obj: c.obj, own: true})
			} else {
				d.replaced(c, copyOf[T]{obj: c.old, own: true}, other)
			}
			return
		}
	}
	d.handlers.tell(c)
}

// othersChanged is ownChanged for the other informer.
func (d *Dual[T]) othersChanged(c change[T]) {
	shard := c.key.Shard
	d.count(shard, c)
	c.key.Shard = ""
	if _, hidden := d.own.store.get(c.key); hidden {
		return
	}
	rest, found := d.best(c.key, func(other string) Standing {
		if other == shard {
			return Gone
		}
		return Member
	})
	if !found {
		d.handlers.tell(c)
		return
	}
	// The changed copy is told of as far as it is, or was, the preferred one.
	before, after := rest, rest
	if old := (copyOf[T]{obj: c.old, shard: shard, standing: Member}); c.had && compareCopies(old, rest) < 0 {
		before = old
	}
	if obj := (copyOf[T]{obj: c.obj, shard: shard, standing: Member}); c.has && compareCopies(obj, rest) < 0 {
		after = obj
	}
	if before.shard == rest.shard && after.shard == rest.shard {
		return
	}
	d.replaced(c, before, after)
}

// replaced tells the handlers that another copy is the preferred one, or has
// changed.
func (d *Dual[T]) replaced(c change[T], before, after copyOf[T]) {
	c.old, c.obj, c.had, c.has, c.same = before.obj, after.obj, true, true, before.obj.GetUID() == after.obj.GetUID()
	d.handlers.tell(c)
}

// count notes which shards have objects.
func (d *Dual[T]) count(shard string, c change[T]) {
	switch before := d.counts[shard]; {
	case c.had == c.has:
		return
	case c.has:
		d.counts[shard]++
		if before > 0 {
			return
		}
	case before > 1:
		d.counts[shard]--
		return
	default:
		delete(d.counts, shard)
	}
	shards := make([]string, 0, len(d.counts))
	for name := range d.counts {
		shards = append(shards, name)
	}
	d.shards.Store(&shards)
}
