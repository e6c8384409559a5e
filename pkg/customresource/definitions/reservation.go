package definitions

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// reservation keeps the names of the definition that one request writes, or that
// another source is about to serve, from others: from the write on until it shows or
// the request has failed. Its fields belong to names.mu.
type reservation struct {
	of *names

	// held reports whether scope, definition and names are reserved.
	held  bool
	scope nameScope
	// definition is the name of a definition, or an owner whose names are not from one.
	definition string
	names      apiextensions.CustomResourceDefinitionNames
	// forSource is set if another source is about to serve under the names.
	forSource bool
	// given reports whether the definition was given others than it had.
	given bool
	// denied reports whether another definition may have been refused a name
	// because of this reservation.
	denied bool
}

type reservationKey struct{}

// reserve returns a context whose writes reserve names until release is called,
// which whoever calls reserve must do, whatever comes of the writes.
func (n *names) reserve(ctx context.Context) (context.Context, *reservation) {
	r := &reservation{of: n}
	return context.WithValue(ctx, reservationKey{}, r), r
}

// reservationFrom returns the reservation of a context, or nil.
func reservationFrom(ctx context.Context) *reservation {
	r, _ := ctx.Value(reservationKey{}).(*reservation)
	return r
}

// othersLocked adds to taken what is reserved in a scope for others than one definition, and
// notes who keeps it from a name that it wants: it is told when these are free.
func (n *names) othersLocked(taken claims, scope nameScope, definition string, wanted *apiextensions.CustomResourceDefinitionNames) {
	ours := newClaims()
	ours.add(wanted, definition)
	for r := range n.reserved[scope] {
		if r.definition == definition {
			continue
		}
		theirs := newClaims()
		theirs.add(&r.names, r.definition)
		if _, _, found := theirs.conflict(ours); found {
			r.denied = true
		}
		taken.add(&r.names, r.definition)
	}
}

// reserveLocked has r reserve names for a definition, in place of those it had.
// Without a reservation nothing is reserved.
func (n *names) reserveLocked(r *reservation, scope nameScope, definition string, names *apiextensions.CustomResourceDefinitionNames) {
	if r == nil {
		return
	}
	n.freeLocked(r)
	r.held, r.scope, r.definition, r.names = true, scope, definition, *names
	if n.reserved[scope] == nil {
		n.reserved[scope] = map[*reservation]struct{}{}
	}
	n.reserved[scope][r] = struct{}{}
}

func (n *names) freeLocked(r *reservation) {
	if !r.held {
		return
	}
	r.held = false
	delete(n.reserved[r.scope], r)
	if len(n.reserved[r.scope]) == 0 {
		delete(n.reserved, r.scope)
	}
}

// release ends the reservation. Definitions that did not get names because of it
// get them now, unless the names are in use by then.
func (r *reservation) release() {
	r.of.mu.Lock()
	r.of.freeLocked(r)
	scope, denied := r.scope, r.denied
	r.of.mu.Unlock()
	if denied {
		r.of.freed.Tell(scope)
	}
}

// namingStorage accepts the names of definitions when they are written: what
// validation or admission refuses never has any.
type namingStorage struct {
	storage.Interface
	names *names
}

// Create implements storage.Interface.
func (s namingStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.names.accept(ctx, obj); err != nil {
		return err
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

// GuaranteedUpdate implements storage.Interface.
func (s namingStorage) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions,
	tryUpdate storage.UpdateFunc, cached runtime.Object,
) error {
	accepted := func(old runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		obj, ttl, err := tryUpdate(old, meta)
		if err == nil {
			err = s.names.accept(ctx, obj)
		}
		return obj, ttl, err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, accepted, cached)
}
