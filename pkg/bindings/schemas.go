package bindings

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"golang.org/x/sync/singleflight"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/apis/conversions"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

var groupVersion = schema.GroupVersion{Group: apis.InternalGroup, Version: "v1alpha1"}

// BoundSchemas are the copies of the schemas of bound APIs. They are only served in tenancy.AdminCluster.
var BoundSchemas = cachekinds.DefineIn[BoundSchema](groupVersion, "BoundSchema", "boundschemas")

// BoundSchema is a copy of an APIResourceSchema. Its name is the UID of the original.
type BoundSchema struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Original is the name of the APIResourceSchema.
	Original string `json:"original"`
	// Provider is the logical cluster of the APIResourceSchema.
	Provider string `json:"provider"`
	// Created is the creation time of the APIResourceSchema.
	Created metav1.Time `json:"created"`
	// Spec is the spec of the APIResourceSchema, which is immutable.
	Spec apis.APIResourceSchemaSpec `json:"spec"`
	// Conversion is the spec of the APIConversion with the same name, or of the last one if it was deleted.
	Conversion *apisv1alpha1.APIConversionSpec `json:"conversion,omitempty"`
}

// BoundSchemaList is a list of BoundSchemas.
type BoundSchemaList = cachekinds.List[BoundSchema, *BoundSchema]

// DeepCopyObject implements runtime.Object.
func (s *BoundSchema) DeepCopyObject() runtime.Object {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	s.Created.DeepCopyInto(&c.Created)
	c.Spec = *s.Spec.DeepCopy()
	c.Conversion = s.Conversion.DeepCopy()
	return &c
}

func definitionOfBoundSchemas() (*definitions.Definition, error) {
	preserve := true
	spec := &apiextensionsv1.CustomResourceDefinitionSpec{
		Group: groupVersion.Group,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Plural: "boundschemas", Singular: "boundschema", Kind: "BoundSchema", ListKind: "BoundSchemaList",
		},
		Scope: apiextensionsv1.ClusterScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: groupVersion.Version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
			},
		}},
		Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	}
	s, err := definitions.NewSchema(spec, &spec.Names)
	if err != nil {
		return nil, err
	}
	return &definitions.Definition{Schema: s, Owner: "the server"}, nil
}

func copyOf(original *apis.APIResourceSchema) *BoundSchema {
	return &BoundSchema{
		ObjectMeta: metav1.ObjectMeta{Name: string(original.UID)},
		Original:   original.Name,
		Provider:   logicalcluster.From(original).String(),
		Created:    original.CreationTimestamp,
		Spec:       original.Spec,
	}
}

// conversionAnnotation is the hash of the conversion rules.
//
//reference:metadata BoundSchema | shard
const conversionAnnotation = apis.InternalGroup + "/conversion"

// pinned is the decoded schema of a copy.
type pinned struct {
	*definitions.Schema
	created time.Time // of the original
	name    string
	rules   string // the hash of the conversion rules, if there are any
	version string // the resourceVersion of the copy
}

// newer orders the schemas for wildcard requests by the time and then by the name of the original.
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
	var err error
	if stored.Conversion == nil {
		p.Schema, err = definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
		return p, err
	}
	rules, errs := conversions.Compile(&crd.Spec, stored.Conversion, environment.StoredExpressions)
	if len(errs) > 0 {
		return nil, fmt.Errorf("the APIConversion %s is invalid for the APIResourceSchema of the same name: %w", stored.Original, errs.ToAggregate())
	}
	p.rules = rules.Hash
	p.Schema, err = definitions.NewConvertedSchema(&crd.Spec, &crd.Spec.Names, rules.Hash, rules.Convert)
	return p, err
}

// validateNew validates new conversion rules, but not those of existing copies. The error wraps apis.ErrInvalidSchema.
func (p *pinned) validateNew(copied *BoundSchema) error {
	if copied.Conversion == nil {
		return nil
	}
	if errs := conversions.ValidateSelectable(p.Spec(), copied.Conversion); len(errs) > 0 {
		return fmt.Errorf("%w: the APIConversion %s is invalid for the APIResourceSchema of the same name: %w", apis.ErrInvalidSchema, copied.Original, errs.ToAggregate())
	}
	return nil
}

func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// pinnedFor is how long a pinned copy need not be pinned again. It must be much shorter than unusedFor.
const pinnedFor = time.Minute

// schemas contains the schemas of bound APIs, which are decoded from their copies when they are first used.
type schemas struct {
	config   *Config
	inUse    func(uid types.UID) bool // whether a binding has bound a schema
	metadata *client.Informer[*metav1.PartialObjectMetadata]
	copies   *client.Client[*BoundSchema, *BoundSchemaList]
	// newest returns the observed resourceVersion of a copy, or "".
	newest      func(uid types.UID) string
	reads, pins singleflight.Group

	mu    sync.Mutex
	byUID map[types.UID]*pinned
	// pinnedAt contains the schemas that were pinned recently and may not be bound yet.
	pinnedAt map[types.UID]time.Time
	// freed is notified when copies have been deleted.
	freed definitions.Listeners[struct{}]
}

// newSchemas returns the schemas of bindings. changed is called when another server of the shard has changed
// the conversion rules of a cached copy.
func newSchemas(config *Config, inUse func(types.UID) bool, changed func(uid types.UID, before *pinned)) (*schemas, error) {
	copies := config.Local.Cluster(tenancy.AdminCluster.Path())
	s := &schemas{config: config, inUse: inUse, copies: BoundSchemas.In(copies), byUID: map[types.UID]*pinned{}, pinnedAt: map[types.UID]time.Time{}}
	s.newest = s.newestCopy
	var err error
	s.metadata, err = client.NewMetadataInformer(copies, BoundSchemas.GroupVersionResource, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: func(copied *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
			return &metav1.PartialObjectMetadata{ObjectMeta: tenancy.Slim(&copied.ObjectMeta, conversionAnnotation)}, nil
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
	s.metadata.AddEventHandler(client.Handler[*metav1.PartialObjectMetadata]{
		OnAdd:    func(copied *metav1.PartialObjectMetadata, _ bool) { changes(copied) },
		OnUpdate: func(_, copied *metav1.PartialObjectMetadata) { changes(copied) },
	})
	return s, nil
}

// Copies returns the informer of the copies of schemas, which the caller must run.
func (s *schemas) Copies() client.Runner { return s.metadata }

func (s *schemas) newestCopy(uid types.UID) string {
	copied, err := s.metadata.Lister().Get(client.Key{Cluster: tenancy.AdminCluster, Name: string(uid)})
	if err != nil {
		return ""
	}
	return copied.ResourceVersion
}

func (s *schemas) cached(uid types.UID) *pinned {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[uid]
}

// add caches a copy, unless a newer version has been observed.
func (s *schemas) add(uid types.UID, p *pinned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isOlder(p.version, s.newest(uid)) {
		s.byUID[uid] = p
	}
}

// outdated removes a schema from the cache and returns it, if its copy has other conversion rules now.
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

func (s *schemas) dropUnused(used func(types.UID) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byUID, func(uid types.UID, _ *pinned) bool { return !used(uid) })
	maps.DeleteFunc(s.pinnedAt, func(_ types.UID, at time.Time) bool { return time.Since(at) > pinnedFor })
}

// keep pins the copy of a schema if a binding still uses it.
func (s *schemas) keep(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.inUse(uid)
	if used {
		s.pinnedAt[uid] = time.Now()
	}
	return used
}

func (s *schemas) isPinned(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, pinned := s.pinnedAt[uid]
	return pinned && time.Since(at) <= pinnedFor
}

// get returns the schema of a copy, from the cache if possible.
func (s *schemas) get(ctx context.Context, uid types.UID) (*pinned, error) {
	if p := s.cached(uid); p != nil {
		return p, nil
	}
	return share(ctx, &s.reads, string(uid), readTimeout, func(ctx context.Context) (*pinned, error) { return s.read(ctx, uid) })
}

func (s *schemas) read(ctx context.Context, uid types.UID) (*pinned, error) {
	stored, err := s.copies.Get(ctx, string(uid), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the shard's copy of the APIResourceSchema %s: %w", uid, err)
	}
	p, err := newPinned(stored)
	if err == nil {
		s.add(uid, p)
	}
	return p, err
}
