package bindings

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/singleflight"
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

// conversionAnnotation is on BoundSchemas that have rules: their hash.
const conversionAnnotation = apis.InternalGroup + "/conversion"

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

// isOlder reports whether a resourceVersion is known to be older than another.
func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

const (
	// readTimeout bounds the reading of a copy, which several requests may wait for.
	readTimeout = 10 * time.Second
	// pinnedFor is how long a copy that was pinned needs not be pinned again: it stays
	// for far longer.
	pinnedFor = time.Minute
)

// schemas are those that are served, read from their copies when they are first asked
// for.
type schemas struct {
	config *Config
	// inUse reports whether a binding has bound a schema.
	inUse func(uid types.UID) bool
	// heard has the metadata of the copies.
	heard  *client.Informer[*metav1.PartialObjectMetadata]
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
	// roomier is notified when copies have been deleted.
	roomier definitions.Listeners[struct{}]
}

// newSchemas returns the schemas of bindings. changed is called when another server of the shard has
// changed the rules of a copy that was read.
func newSchemas(config *Config, inUse func(types.UID) bool, changed func(uid types.UID, before *pinned)) (*schemas, error) {
	copies := config.Local.Cluster(tenancy.AdminCluster.Path())
	s := &schemas{config: config, inUse: inUse, copies: BoundSchemas.In(copies), byUID: map[types.UID]*pinned{}, pinnedAt: map[types.UID]time.Time{}}
	s.newest = s.newestCopy
	var err error
	s.heard, err = client.NewMetadataInformer(copies, BoundSchemas.GroupVersionResource, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: func(copied *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
			slim := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: copied.Name, ResourceVersion: copied.ResourceVersion}}
			slim.Annotations = map[string]string{logicalcluster.AnnotationKey: copied.Annotations[logicalcluster.AnnotationKey]}
			if rules := copied.Annotations[conversionAnnotation]; rules != "" {
				slim.Annotations[conversionAnnotation] = rules
			}
			return slim, nil
		},
	})
	if err != nil {
		return nil, err
	}
	changes := func(copied *metav1.PartialObjectMetadata) {
		uid := types.UID(copied.Name)
		if before := s.outdated(uid, copied); before != nil {
			changed(uid, before)
		}
	}
	s.heard.AddEventHandler(client.Handler[*metav1.PartialObjectMetadata]{
		OnAdd:    func(copied *metav1.PartialObjectMetadata, _ bool) { changes(copied) },
		OnUpdate: func(_, copied *metav1.PartialObjectMetadata) { changes(copied) },
	})
	return s, nil
}

// Copies returns the metadata of the copies of schemas. It is to be run.
func (s *schemas) Copies() client.Runner { return s.heard }

// newestCopy returns the resourceVersion of a copy that the index has heard of, or "".
func (s *schemas) newestCopy(uid types.UID) string {
	copied, err := s.heard.Lister().Get(client.Key{Cluster: tenancy.AdminCluster, Name: string(uid)})
	if err != nil {
		return ""
	}
	return copied.ResourceVersion
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

// outdated forgets and returns a schema if its copy has other rules now.
func (s *schemas) outdated(uid types.UID, copied *metav1.PartialObjectMetadata) *pinned {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byUID[uid]
	if p == nil || p.rules == copied.Annotations[conversionAnnotation] || !isOlder(p.version, copied.ResourceVersion) {
		return nil
	}
	delete(s.byUID, uid)
	return p
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
