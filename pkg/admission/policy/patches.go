package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"
	"k8s.io/client-go/openapi"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
	"github.com/shardplane/shardplane/pkg/request/quantities"
)

const (
	// maxPatchSize limits computed patches. It is the size of the largest request, and the limit of the copy operation.
	//
	//reference:limit request | admission policies: size of a computed patch | the policy fails
	maxPatchSize = 3 << 20
	// sizeOfValue is added to the size for each value of a patch.
	sizeOfValue = 8
)

// limitedPatches rejects patches that are expensive to apply. CEL counts a reference to a list as one, although the
// patch contains all elements of the list. Upstream applies patches without the context of the request.
type limitedPatches struct{ cel.MutatingEvaluator }

func (l limitedPatches) ForInput(ctx context.Context, a *admission.VersionedAttributes, request *admissionv1.AdmissionRequest, variables cel.OptionalVariableBindings, namespace *corev1.Namespace, budget int64) (cel.EvaluationResult, int64, error) {
	result, remaining, err := l.MutatingEvaluator.ForInput(ctx, a, request, variables, namespace, budget)
	if err != nil || result.Error != nil {
		return result, remaining, err
	}
	// There may be a thousand more patches, and each is applied without interruption.
	if err = ctx.Err(); err == nil {
		_, isConfiguration := result.EvalResult.(*dynamic.ObjectVal)
		patch := patchSize{configuration: isConfiguration}
		patch.add(result.EvalResult)
		err = patch.check()
	}
	if err != nil {
		return cel.EvaluationResult{}, -1, err
	}
	return result, remaining, nil
}

type patchSize struct {
	// size is the number of bytes in strings, plus sizeOfValue for each value.
	size int
	// shifts is the number of operations of a JSON patch that shift the elements of a list.
	shifts int
	// entries is the number of entries in lists of an apply configuration, which are compared with those of the object.
	entries       int
	configuration bool
	quantities    quantities.Sum
}

func (p *patchSize) check() error {
	switch {
	case p.size > maxPatchSize:
		return fmt.Errorf("the patch is larger than %d bytes: do not repeat large values in it", maxPatchSize)
	case p.entries > patchcosts.MaxKeyed:
		return fmt.Errorf("the lists of the apply configuration have more than %d entries: use a JSON patch", patchcosts.MaxKeyed)
	default:
		return cmp.Or(patchcosts.CheckShifts(p.shifts), p.quantities.Err())
	}
}

// add adds the cost of a value. It stops if a limit is exceeded.
func (p *patchSize) add(value ref.Val) {
	p.size += sizeOfValue
	switch value := value.(type) {
	case types.String:
		p.size += len(value)
		p.quantities.Add([]byte(value))
	case types.Bytes:
		p.size += len(value)
	case *mutation.JSONPatchVal:
		p.size += len(value.Op) + len(value.Path) + len(value.From)
		p.shifts += patchcosts.Shifts(value.Op, value.Path, value.From)
		if value.Val != nil {
			p.add(value.Val)
		}
	case *types.Optional:
		if value.HasValue() {
			p.add(value.GetValue())
		}
	case *dynamic.ObjectVal:
		for name, field := range fieldsOf(value) {
			p.size += len(name)
			p.add(field)
		}
	case traits.Mapper:
		for it := value.Iterator(); it.HasNext() == types.True && p.check() == nil; {
			key := it.Next()
			p.add(key)
			p.add(value.Get(key))
		}
	case traits.Lister:
		for it := value.Iterator(); it.HasNext() == types.True && p.check() == nil; {
			p.add(it.Next())
			if p.configuration {
				p.entries++
			}
		}
	}
}

// fieldsOf returns the fields of an object. Upstream exports only a method that converts and copies all of them.
func fieldsOf(object *dynamic.ObjectVal) map[string]ref.Val {
	fields := reflect.ValueOf(object).Elem().FieldByName("fields")
	return *(*map[string]ref.Val)(unsafe.Pointer(fields.UnsafeAddr()))
}

const (
	// maxConverters is the number of cached converters of all logical clusters together.
	//
	//reference:none
	maxConverters = 32
	// maxClusters is the number of logical clusters whose index of schemas is cached.
	//
	//reference:none
	maxClusters = 256
	// pathsFor is the lifetime of a cached index of schemas. It is upstream's polling interval.
	pathsFor = 5 * time.Second
)

// converters caches type converters by the hash of their schema, so that logical clusters share them.
type converters struct {
	clients  *client.Factory
	cache    *lru.Cache
	clusters *lru.Cache
}

func (c *converters) of(cluster logicalcluster.Name) (patch.TypeConverterManager, error) {
	if found, ok := c.clusters.Get(cluster); ok {
		return found.(patch.TypeConverterManager), nil
	}
	discovery, err := documents.Of(c.clients.Cluster(cluster.Path()))
	if err != nil {
		return nil, err
	}
	made := &clusterConverters{shared: c, schemas: discovery.OpenAPIV3()}
	c.clusters.Add(cluster, made)
	return made, nil
}

// clusterConverters reads the schemas of one logical cluster on demand.
type clusterConverters struct {
	shared  *converters
	schemas openapi.Client

	mu      sync.Mutex
	paths   map[string]openapi.GroupVersion
	fetched time.Time
}

func (c *clusterConverters) Run(context.Context) {}

func (c *clusterConverters) GetTypeConverter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	converter, err := c.get(gvk.GroupVersion())
	if err != nil {
		// A nil converter means that there is none.
		utilruntime.HandleError(fmt.Errorf("no schema of %s to apply a configuration with: %w", gvk, err))
		return nil
	}
	return converter
}

func (c *clusterConverters) get(gv schema.GroupVersion) (managedfields.TypeConverter, error) {
	path := "apis/" + gv.String()
	if gv.Group == "" {
		path = "api/" + gv.Version
	}
	entry, err := c.entry(path)
	if err != nil {
		return nil, err
	}
	key := path + "?" + hashOf(entry.ServerRelativeURL())
	if found, ok := c.shared.cache.Get(key); ok {
		return found.(managedfields.TypeConverter), nil
	}
	text, err := entry.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var document spec3.OpenAPI
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	converter, err := managedfields.NewTypeConverter(document.Components.Schemas, false)
	if err != nil {
		return nil, err
	}
	c.shared.cache.Add(key, converter)
	return converter, nil
}

// hashOf returns the hash in the URL of a schema, or the URL if it has none.
func hashOf(relative string) string {
	if u, err := url.Parse(relative); err == nil && u.Query().Get("hash") != "" {
		return u.Query().Get("hash")
	}
	return relative
}

func (c *clusterConverters) entry(path string) (openapi.GroupVersion, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry, ok := c.paths[path]; ok && time.Since(c.fetched) < pathsFor {
		return entry, nil
	}
	paths, err := c.schemas.Paths()
	if err != nil {
		return nil, err
	}
	c.paths, c.fetched = paths, time.Now()
	entry, ok := paths[path]
	if !ok {
		return nil, fmt.Errorf("the logical cluster serves no schema at %s", path)
	}
	return entry, nil
}
