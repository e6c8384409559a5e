package bindings

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/apis/conversions"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// pinnedAnnotation is on a BoundSchema that was about to be bound again, when it
	// was. It is what keeps Unpin from deleting the copy before a binding names it.
	pinnedAnnotation = apis.InternalGroup + "/pinned-at"
	// unusedFor is how long a copy stays that no binding names.
	unusedFor = 10 * time.Minute
	// pinnedFor is how long a copy that was pinned needs not be pinned again: it stays
	// for far longer.
	pinnedFor = time.Minute
	// readTimeout bounds the reading of a copy, which several requests may wait for, and
	// pinTimeout the making of one.
	readTimeout, pinTimeout = 10 * time.Second, time.Minute
)

// pinned is a schema that is served, as it was read from its copy.
type pinned struct {
	*definitions.Schema
	// created is when the original was.
	created time.Time
	name    string
	// rules is the hash of the rules that convert it, or empty, and version the
	// resourceVersion of the copy.
	rules, version string
}

// newer reports whether p goes before another one where a wildcard needs one schema:
// the later original, and among equals the one of the greater name.
func (p *pinned) newer(than *pinned) bool {
	if than == nil || !p.created.Equal(than.created) {
		return than == nil || p.created.After(than.created)
	}
	return p.name+p.Hash > than.name+than.Hash
}

// schemas are those that are served, read from their copies when they are first asked
// for.
type schemas struct {
	copies *client.Client[*BoundSchema, *BoundSchemaList]
	reads  singleflight.Group
	// newest returns the resourceVersion of a copy, as far as is known.
	newest func(uid types.UID) string

	// pins are those that are under way.
	pins singleflight.Group

	mu    sync.Mutex
	byUID map[types.UID]*pinned
	// pinnedAt is when those were pinned that no binding may name yet.
	pinnedAt map[types.UID]time.Time
}

func newSchemas(local *client.Factory, newest func(types.UID) string) *schemas {
	return &schemas{copies: BoundSchemas.In(local.Cluster(tenancy.AdminCluster.Path())), newest: newest, byUID: map[types.UID]*pinned{}, pinnedAt: map[types.UID]time.Time{}}
}

// known returns a schema that was read before, or nil.
func (s *schemas) known(uid types.UID) *pinned {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[uid]
}

// know remembers what was read of a copy, unless that has changed in the meantime.
func (s *schemas) know(uid types.UID, p *pinned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isOlder(p.version, s.newest(uid)) {
		s.byUID[uid] = p
	}
}

// isOlder reports whether a resourceVersion is known to be older than another.
func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// dropUnused drops what was read of copies that are not used.
func (s *schemas) dropUnused(used func(types.UID) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.byUID {
		if !used(uid) {
			delete(s.byUID, uid)
		}
	}
	maps.DeleteFunc(s.pinnedAt, func(_ types.UID, at time.Time) bool { return time.Since(at) > pinnedFor })
}

// isPinned reports whether a copy has just been pinned, and notePinned notes when it was.
func (s *schemas) isPinned(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, pinned := s.pinnedAt[uid]
	return pinned && time.Since(at) <= pinnedFor
}

func (s *schemas) notePinned(uid types.UID, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinnedAt[uid] = at
}

// get returns the schema of a copy.
func (s *schemas) get(ctx context.Context, uid types.UID) (*pinned, error) {
	if p := s.known(uid); p != nil {
		return p, nil
	}
	done := s.reads.DoChan(string(uid), func() (any, error) {
		// Others may wait for it whose requests go on.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		return s.read(ctx, uid)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-done:
		p, _ := result.Val.(*pinned)
		return p, result.Err
	}
}

func (s *schemas) read(ctx context.Context, uid types.UID) (*pinned, error) {
	stored, err := s.copies.Get(ctx, string(uid), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the shard's copy of the APIResourceSchema %s: %w", uid, err)
	}
	p, err := newPinned(stored)
	if err == nil {
		s.know(uid, p)
	}
	return p, err
}

func newPinned(stored *BoundSchema) (*pinned, error) {
	crd, errs := apis.Definition(&apis.APIResourceSchema{ObjectMeta: metav1.ObjectMeta{Name: stored.Original}, Spec: stored.Spec})
	if len(errs) > 0 {
		return nil, fmt.Errorf("the APIResourceSchema %s is not valid: %w", stored.Original, errs.ToAggregate())
	}
	p := &pinned{created: stored.Created.Time, name: stored.Original, version: stored.ResourceVersion}
	if stored.Conversion == nil {
		var err error
		p.Schema, err = definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
		return p, err
	}
	rules, errs := conversions.Compile(&crd.Spec, stored.Conversion, environment.StoredExpressions)
	if len(errs) > 0 {
		return nil, fmt.Errorf("the APIConversion %s does not fit the APIResourceSchema of its name: %w", stored.Original, errs.ToAggregate())
	}
	var err error
	p.rules = rules.Hash
	p.Schema, err = definitions.NewConvertedSchema(&crd.Spec, &crd.Spec.Names, rules.Hash, rules.Convert)
	return p, err
}

// validateNew returns what is wrong with new rules. Copies that have such rules already are used as they are. The error
// wraps apis.ErrInvalidSchema.
func (p *pinned) validateNew(copied *BoundSchema) error {
	if copied.Conversion == nil {
		return nil
	}
	if errs := conversions.ValidateSelectable(p.Spec(), copied.Conversion); len(errs) > 0 {
		return fmt.Errorf("%w: the APIConversion %s does not fit the APIResourceSchema of its name: %w", apis.ErrInvalidSchema, copied.Original, errs.ToAggregate())
	}
	return nil
}

// Pin makes sure that the shard has a copy of an APIResourceSchema, before the status
// of a binding names it, and returns the version in which objects are stored. read
// returns the original, and is called where it is not known yet. The error wraps
// apis.ErrInvalidSchema if the schema cannot be served. Of all who ask for one at the same
// time, which are thousands where an export names a new one, one makes it.
func (x *Index) Pin(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error) {
	if p := x.schemas.known(uid); p != nil && (x.used(uid) || x.schemas.isPinned(uid)) {
		return p.StoredVersion(), nil
	}
	done := x.schemas.pins.DoChan(string(uid), func() (any, error) {
		// Others may wait for it who go on.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinTimeout)
		defer cancel()
		began := time.Now()
		version, err := x.makeCopy(ctx, uid, read)
		if err == nil {
			x.schemas.notePinned(uid, began)
		}
		return version, err
	})
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case result := <-done:
		version, _ := result.Val.(string)
		return version, result.Err
	}
}

// makeCopy is Pin where there may be no copy.
func (x *Index) makeCopy(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error) {
	original, err := read(ctx)
	if err != nil {
		return "", err
	}
	copied := copyOf(original)
	if copied.Conversion, err = x.conversionOf(ctx, copied); err != nil {
		return "", err
	}
	p, err := newPinned(copied)
	if err != nil {
		return "", fmt.Errorf("%w: %w", apis.ErrInvalidSchema, err)
	}
	if err := p.validateNew(copied); err != nil {
		return "", err
	}
	if original.UID != uid {
		return "", fmt.Errorf("the APIResourceSchema %s has just been replaced", original.Name)
	}
	if err := x.pin(ctx, copied, p); err != nil {
		return "", err
	}
	return p.StoredVersion(), nil
}

// pin stores a copy, unless there is one.
func (x *Index) pin(ctx context.Context, copied *BoundSchema, p *pinned) error {
	if err := x.room(ctx, copied); err != nil {
		return err
	}
	if p.rules != "" {
		metav1.SetMetaDataAnnotation(&copied.ObjectMeta, conversionAnnotation, p.rules)
	}
	created, err := x.schemas.copies.Create(ctx, copied, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		at := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, pinnedAnnotation, time.Now().UTC().Format(time.RFC3339Nano))
		created, err = x.schemas.copies.Patch(ctx, copied.Name, types.MergePatchType, []byte(at), metav1.PatchOptions{})
	}
	if err != nil {
		return notKept(copied, err)
	}
	// It may have come, or changed, when whoever follows it found no copy.
	now, err := x.conversionOf(ctx, copied)
	if err != nil {
		return err
	}
	if now != nil {
		if err := x.Convert(ctx, types.UID(copied.Name), now); err != nil {
			return err
		}
	}
	if created.Annotations[conversionAnnotation] == p.rules {
		p.version = created.ResourceVersion
		x.schemas.know(types.UID(copied.Name), p)
	}
	return nil
}

// notKept is the error of storing a copy: for what is too large to be stored, that the schema cannot
// be served so.
func notKept(copied *BoundSchema, err error) error {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return fmt.Errorf("%w: it is too large to be kept, with the APIConversion of its name if there is one: %w", apis.ErrInvalidSchema, err)
	}
	if apierrors.IsNotFound(err) { // which would be taken for the original
		return fmt.Errorf("keeping a copy of the APIResourceSchema %s: it has just been deleted", copied.Original)
	}
	return fmt.Errorf("keeping a copy of the APIResourceSchema %s: %w", copied.Original, err)
}

// Unpin deletes the copies that no binding has named for a while.
func (x *Index) Unpin(ctx context.Context) error {
	if err := x.informer.WaitForSync(ctx); err != nil {
		return err
	}
	before := time.Now().Add(-unusedFor)
	list, err := x.schemas.copies.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the copies of APIResourceSchemas: %w", err)
	}
	deleted := false
	defer func() {
		if deleted {
			x.roomier.Tell(struct{}{})
		}
	}()
	for i := range list.Items {
		stored := &list.Items[i]
		since := stored.CreationTimestamp.Time
		if at, err := time.Parse(time.RFC3339Nano, stored.Annotations[pinnedAnnotation]); err == nil {
			since = at
		}
		if since.After(before) || x.used(types.UID(stored.Name)) {
			continue
		}
		// Not if it was pinned again in the meantime.
		err := x.schemas.copies.Delete(ctx, stored.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &stored.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the copy of the APIResourceSchema %s: %w", stored.Original, err)
		}
		deleted = deleted || err == nil
	}
	return nil
}
