package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apisharding "k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
	"github.com/shardplane/shardplane/pkg/request/shardselector"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
)

// WithListRules returns the filter that rejects large selectors and unsupported shard selectors (400). It passes the
// parsed shard selector on, and adds shardInfo to tables and metadata lists. It must come after authorization.
func WithListRules(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	selectors := lru.New(rememberedSelectors)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		selects := ok && info.IsResourceRequest && (info.Verb == "list" || info.Verb == "watch" || info.Verb == "deletecollection")
		if !selects || r.URL.RawQuery == "" { // most requests have no query
			next.ServeHTTP(w, r)
			return
		}
		selector, err := checkShardSelector(selectors, r, info.Verb)
		switch {
		case err != nil:
			respond(w, r, s, err)
		case selector == nil || keepsSelector(info.Verb, selector):
			next.ServeHTTP(w, r)
		case info.Verb == "list" && !selector.Empty() && requestsConversion(r):
			serveWithShardInfo(next, w, withParsedSelector(r, selector), selector.String())
		default:
			next.ServeHTTP(w, withParsedSelector(r, selector))
		}
	})
}

const (
	// maxRequirements and maxSelectorBytes limit selectors, and maxRequirements the ranges of a shard
	// selector. Each event is matched against the selectors of all watches of its resource.
	//
	//reference:limit request | selector: requirements, or ranges of a shardSelector | 400
	maxRequirements = 128
	//reference:limit request | selector: length | 400
	maxSelectorBytes = 16 << 10
	// partsPerSlot is how many requirements cost as much as a watch without selector.
	partsPerSlot   = 4
	rangeSeparator = "||"
	// shortQuery is the length up to which a query cannot exceed a limit.
	shortQuery = maxRequirements
)

func checkSelectors(r *http.Request) error {
	if len(r.URL.RawQuery) <= shortQuery {
		return nil
	}
	query := r.URL.Query()
	for _, parameter := range []string{"labelSelector", "fieldSelector", shardSelectorParameter} {
		for _, selector := range query[parameter] {
			if n := len(selector); n > maxSelectorBytes {
				return apierrors.NewBadRequest(fmt.Sprintf("%s has %d bytes, at most %d allowed: use a label that all these objects have", parameter, n, maxSelectorBytes))
			}
			if n := requirements(parameter, selector); n > maxRequirements {
				return apierrors.NewBadRequest(fmt.Sprintf("%s has %d requirements, at most %d allowed: use a label that all these objects have", parameter, n, maxRequirements))
			}
		}
	}
	return nil
}

// requirements returns the number of ranges in a shard selector, or of requirements in another
// selector. Commas in parentheses separate values of one requirement, which cost a tenth as much.
func requirements(parameter, selector string) int {
	if parameter == shardSelectorParameter {
		return 1 + strings.Count(selector, rangeSeparator)
	}
	n, depth := 1, 0
	for _, c := range selector {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth <= 0:
			n++
		}
	}
	return n
}

// watchSlots returns the cost of a watch. Each event is matched against its selectors, and each of their values.
func watchSlots(r *http.Request) int64 {
	parts, query := 0, r.URL.Query()
	for parameter, separator := range map[string]string{"labelSelector": ",", "fieldSelector": ",", shardSelectorParameter: rangeSeparator} {
		for _, selector := range query[parameter] {
			parts += 1 + strings.Count(selector, separator)
		}
	}
	return 1 + int64(parts/partsPerSlot)
}

const (
	shardSelectorParameter = "shardSelector"
	// rememberedSelectors limits the cache of parsed selectors. Parsing takes longer than all other filters.
	rememberedSelectors = 1024
	// longestRemembered excludes long selectors, which are rare, to save memory.
	longestRemembered = 4096
)

// checkShardSelector returns the parsed shard selector, or nil. It rejects malformed ones, for which upstream returns
// 500. While the feature gate is disabled, the selector is ignored like any unknown parameter, except for
// DELETECOLLECTION, which would delete the objects of all shards.
func checkShardSelector(parsed *lru.Cache, r *http.Request, verb string) (apisharding.Selector, error) {
	if err := checkSelectors(r); err != nil {
		return nil, err
	}
	expression := r.URL.Query().Get(shardSelectorParameter)
	if expression == "" {
		return nil, nil
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		if verb != "deletecollection" {
			return nil, nil
		}
		return nil, apierrors.NewBadRequest("shardSelector is not supported, because the feature gate ShardedListAndWatch is disabled: all objects of the collection would be deleted")
	}
	if cached, ok := parsed.Get(expression); ok {
		return cached.(apisharding.Selector), nil //nolint:forcetypeassert // all entries are added below
	}
	selector, err := shardselector.Parse(expression)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid shardSelector: %v", err))
	}
	if len(expression) <= longestRemembered {
		parsed.Add(expression, selector)
	}
	return selector, nil
}

// withParsedSelector moves the selector from the query into the context, so that it is not parsed
// again, which would take 28 µs and 250 allocations.
func withParsedSelector(r *http.Request, selector apisharding.Selector) *http.Request {
	r = r.WithContext(request.WithShardSelector(r.Context(), selector))
	rest := *r.URL
	query := rest.Query()
	query.Del(shardSelectorParameter)
	rest.RawQuery = query.Encode()
	r.URL = &rest
	return r
}

// keepsSelector reports whether the selector must remain in the query. It must for DELETECOLLECTION, so that it
// cannot be lost before it reaches the storage. A selector by logical cluster is removed, because upstream's
// registry does not support it.
func keepsSelector(verb string, selector apisharding.Selector) bool {
	if verb != "deletecollection" {
		return false
	}
	requirements := selector.Requirements()
	return len(requirements) == 0 || requirements[0].Key != hashrange.Cluster.Path()
}

var metaCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	utilruntime.Must(metav1beta1.AddMetaToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// serveWithShardInfo adds shardInfo to a sharded list as Table or PartialObjectMetadataList. Upstream omits it in
// both. Clients would then interpret a part as the complete list. The response is decoded and encoded again.
func serveWithShardInfo(next http.Handler, w http.ResponseWriter, r *http.Request, selector string) {
	plain := r.Clone(r.Context())
	plain.Header.Del("Accept-Encoding") // the response is decoded here
	response := &bufferedResponse{header: w.Header()}
	next.ServeHTTP(response, plain)
	body := response.body.Bytes()
	if response.code == http.StatusOK {
		if completed, err := addShardInfo(w.Header().Get("Content-Type"), body, selector); err != nil {
			klog.FromContext(r.Context()).Error(err, "Failed to add shardInfo to the response of a sharded list")
		} else {
			body = completed
		}
	}
	if w.Header().Get("Content-Length") != "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	if response.code != 0 {
		w.WriteHeader(response.code)
	}
	_, _ = w.Write(body)
}

func requestsConversion(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		if strings.Contains(accept, "as=Table") || strings.Contains(accept, "as=PartialObjectMetadataList") {
			return true
		}
	}
	return false
}

func addShardInfo(contentType string, body []byte, selector string) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("content type %q: %w", contentType, err)
	}
	info, ok := runtime.SerializerInfoForMediaType(metaCodecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("no serializer for content type %q", contentType)
	}
	obj, _, err := info.Serializer.Decode(body, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return body, nil // the response is the list itself
	}
	if err != nil {
		return nil, fmt.Errorf("decoding the response: %w", err)
	}
	list, ok := obj.(metav1.ShardedListInterface)
	if !ok || list.GetShardInfo() != nil {
		return body, nil
	}
	list.SetShardInfo(&metav1.ShardInfo{Selector: selector})
	var out bytes.Buffer
	if err := info.Serializer.Encode(obj, &out); err != nil {
		return nil, fmt.Errorf("encoding the response: %w", err)
	}
	return out.Bytes(), nil
}

// WithPatchLimit returns the filter that rejects patches and objects that would be too expensive to process, see
// patchcosts. Like the others here, it must come after the filter that reads bodies.
func WithPatchLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return withBodyCheck(next, s, func(info *apirequest.RequestInfo, body []byte, mediaType string) (err error) {
		if info.Verb == "patch" {
			err = patchcosts.Check(body, mediaType)
		}
		if err == nil && writes(info) && mayHaveLargeMaps(body, mediaType) {
			err = patchcosts.CheckMaps(documentIn(body, mediaType, s))
		}
		return tooLarge(err)
	})
}

func tooLarge(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(err.Error())
}

func writes(info *apirequest.RequestInfo) bool {
	return info.Verb == "create" || info.Verb == "update" || info.Verb == "patch"
}

// mayHaveLargeMaps reports whether the body must be decoded to check the size of its maps.
func mayHaveLargeMaps(body []byte, mediaType string) bool {
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		const entry = 4 // bytes
		return len(body) >= entry*patchcosts.MaxFields
	default:
		return bytes.Count(body, []byte(":")) >= patchcosts.MaxFields
	}
}

// WithListLimit returns the filter that rejects built-in objects with too many entries in lists that are merged by
// key, which are compared before admission. Custom resources must be served before.
func WithListLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return withBodyCheck(next, s, func(info *apirequest.RequestInfo, body []byte, mediaType string) error {
		if !writes(info) || len(body) <= patchcosts.MaxKeyed {
			return nil
		}
		return tooLarge(patchcosts.CheckLists(documentIn(body, mediaType, s)))
	})
}

// documentIn returns the decoded body, or nil if it cannot have too many entries or cannot be decoded.
func documentIn(body []byte, mediaType string, s runtime.NegotiatedSerializer) (document any) {
	switch mediaType {
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		if json.Valid(body) { // most clients apply JSON
			break
		}
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil
		}
	case runtime.ContentTypeProtobuf:
		serializer, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), mediaType)
		if !ok {
			return nil
		}
		object, _, err := serializer.Serializer.Decode(body, nil, nil)
		if err != nil {
			return nil
		}
		if body, err = json.Marshal(object); err != nil {
			return nil
		}
	default: // objects and patches in JSON
	}
	if bytes.Count(body, []byte(",")) < patchcosts.MaxKeyed || json.Unmarshal(body, &document) != nil {
		return nil
	}
	return document
}

// WithFieldManagerLimit returns the filter that rejects too many entries in metadata.managedFields.
func WithFieldManagerLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return withBodyCheck(next, s, func(info *apirequest.RequestInfo, body []byte, mediaType string) error {
		// Upstream ignores the managers in subresource requests.
		if info.Subresource == "" && fieldmanagers.Exceed(body, mediaType, request.MaxFieldManagers) {
			return apierrors.NewBadRequest(fmt.Sprintf("metadata.managedFields has too many entries, at most %d allowed, and a patch must not copy or move entries: remove those of managers that no longer write the object", request.MaxFieldManagers))
		}
		return nil
	})
}

// withBodyCheck returns the filter that rejects requests for resources with a body in memory that does not pass check.
func withBodyCheck(next http.Handler, s runtime.NegotiatedSerializer, check func(info *apirequest.RequestInfo, body []byte, mediaType string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if body, inMemory := bodies.Unread(r); ok && inMemory && info.IsResourceRequest {
			mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // the filter that reads bodies rejects malformed ones
			if err := check(info, body, mediaType); err != nil {
				respond(w, r, s, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
