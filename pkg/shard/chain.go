package shard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/sdk/apis/core"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/merge"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
)

func (s *objectServers) chain(c *genericapiserver.Config) serving.Chain {
	scopes := serving.Scopes{
		Mounts: request.ShardMounts(), Resolve: s.local.resolve, Mounted: s.local.mounted, ResolveGrantor: s.grantingCluster, Inactive: s.local.inactive,
		Watches: s.local.watches, Ready: s.local.ready(s.bindings.HasSynced), Codecs: registry.Codecs,
	}
	throttle, watched := serving.Watchdog(c, s.metrics)
	waiter := newWorkspaceWaiter(s.requestAccess)
	return slices.Concat(
		serving.EarlyFilters(c),
		serving.Chain{
			serving.NewFilter("token's cluster", "uses the logical cluster of a service account token if the URL contains none", authn.WithTokenCluster),
			serving.NewFilter("scope", "moves /clusters/<name> from the URL to the context; 400, or 503 during startup", scopes.Find),
			serving.NewFilter("merged", "detects requests that a front-proxy merges", func(next http.Handler) http.Handler {
				return withMerged(next, s.authentication.Forwarded)
			}),
			serving.AuditScope(c, s.local.pathOf),
			serving.NewFilter("impersonation scope", "restricts the impersonated user to the logical cluster; 400", func(next http.Handler) http.Handler {
				return authz.WithImpersonationScope(next, registry.Codecs)
			}),
		},
		serving.AuthenticationFilters(c),
		serving.Chain{
			serving.Connections(s.authentication.Forwarded, serving.TooMany(c)),
			serving.NewFilter("process paths", "rejects paths of the process below a logical cluster; 501", scopes.AboutProcess),
			serving.NewFilter("entry", "sets the access header in responses", serving.WithAccessHeader),
		},
		serving.Decision(c,
			serving.NewFilter("new workspaces", "waits until a new logical cluster is ready; 503", waiter.wrap),
			serving.NewFilter("home workspaces", "serves workspaces/~ in root; 403, 429", func(next http.Handler) http.Handler {
				if !s.options.Homes.Enabled || !s.options.Root() {
					return next
				}
				return waiter.serveHomes(next)
			}),
		),
		serving.Chain{
			throttle,
			serving.Bodies(c, s.options.Serving.Limits, s.metrics),
			serving.RequestLimits(c, s.options.Serving.Limits, s.metrics),
			serving.WatchLimits(c, s.options.Serving.Limits, s.metrics),
			serving.WatchBytes(c, s.options.Serving.Limits, s.metrics),
			serving.LongRunningStop(s.serving, c),
			serving.NewFilter("fairness", "queues requests by logical cluster; 429", func(next http.Handler) http.Handler {
				if shares := s.options.Fairness.New(s.metrics); shares != nil {
					return shares.Wrap(next, c.LongRunningFunc)
				}
				return next
			}),
			serving.InFlight(c, s.metrics),
			watched,
		},
		serving.ResponseFilters(c),
		serving.Chain{
			serving.NewFilter("deep reviews", "omits the access to the workspace in SubjectAccessReviews of other servers", authz.WithDeepReviews),
			serving.NewFilter("readiness warnings", "adds problems with other servers to /readyz?verbose", func(next http.Handler) http.Handler {
				return serving.WithReadinessWarnings(next, func() []string { return s.connections.readinessWarnings(s.informers.Shards.Lister().Len() < 2) })
			}),
			serving.NewFilter("admin", "serves Shards at /services/admin; 404, 405, 503", s.withAdmin),
			serving.NewFilter("scope rules", "404 for unknown paths, 400 without a logical cluster, 405 on *, 403 if it is inactive", scopes.Rules),
			serving.NewFilter("managers", "rejects objects with more than 128 field managers; 400", func(next http.Handler) http.Handler { return serving.WithFieldManagerLimit(next, registry.Codecs) }),
			serving.NewFilter("patches", "rejects expensive patches, e.g. with more than 1,000 list operations; 413", func(next http.Handler) http.Handler { return serving.WithPatchLimit(next, registry.Codecs) }),
			serving.NewFilter("data", "ends watches of front-proxies after a restore of an older backup; 410", s.withData),
			serving.NewFilter("own versions", "extracts the version of this shard from merged versions; 400, 410, 503", s.withOwnVersions),
			serving.NewFilter("virtual workspaces", "serves virtual workspaces; 403, 404, 405 on *", s.virtualWorkspaces.wrap),
			serving.NewFilter("list rules", "limits selectors, and parses shardSelector; 400", func(next http.Handler) http.Handler { return serving.WithListRules(next, registry.Codecs) }),
			serving.NewFilter("custom resources", "serves custom resources, merged discovery and OpenAPI", s.customResources.Wrap),
			serving.NewFilter("lists", "rejects built-in objects with more than 1,000 entries in keyed lists; 413", func(next http.Handler) http.Handler { return serving.WithListLimit(next, registry.Codecs) }),
		},
	)
}

// withMerged marks wildcard requests whose responses a front-proxy merges with those of other shards.
func withMerged(next http.Handler, forwarded func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(request.MergedHeader) == "true" && request.ScopeFrom(r.Context()).Cluster.Wildcard && forwarded(r) {
			r = r.WithContext(request.WithMerged(r.Context()))
		}
		next.ServeHTTP(w, r)
	})
}

// ownVersion returns the part of a merged resource version that belongs to this shard. The error is an API status.
func (s *installation) ownVersion(version string) (string, error) {
	if !merge.IsVersion(version) {
		return version, nil
	}
	obj, err := s.informers.Shards.Lister().Cluster(core.RootCluster).Get("", s.options.Name)
	if err != nil {
		return "", request.Unavailable("the shard has not loaded its own Shard object yet, try again")
	}
	// The Shard object of a shard other than root is a replica.
	uid := cmp.Or(obj.Annotations[request.OriginalUIDAnnotation], string(obj.UID))
	own, err := merge.OwnVersion(merge.NumberOf(uid), version)
	switch {
	case errors.Is(err, merge.ErrOtherShards):
		return "", apierrors.NewResourceExpired("the resource version does not contain the version of the object's shard: read the object again")
	case err != nil:
		return "", apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	return own, nil
}

// withOwnVersions replaces merged resource versions that admission sees too late or not at all: in queries, in
// preconditions of deletions and in JSON patches.
func (s *installation) withOwnVersions(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scoped, err := s.ownQuery(r)
		if err == nil {
			scoped, err = s.ownBody(scoped)
		}
		if err != nil {
			responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		next.ServeHTTP(w, scoped)
	})
}

func (s *installation) ownQuery(r *http.Request) (*http.Request, error) {
	if !strings.Contains(r.URL.RawQuery, "resourceVersion=") {
		return r, nil
	}
	query := r.URL.Query()
	given := query.Get("resourceVersion")
	own, err := s.ownVersion(given)
	if err != nil || own == given {
		return r, err
	}
	query.Set("resourceVersion", own)
	changed := r.Clone(r.Context())
	changed.URL.RawQuery = query.Encode()
	return changed, nil
}

func (s *installation) ownBody(r *http.Request) (*http.Request, error) {
	contentType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	patch := r.Method == http.MethodPatch && contentType == string(types.JSONPatchType)
	if r.Body == nil || r.Method != http.MethodDelete && !patch {
		return r, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	changed := r.Clone(r.Context())
	changed.Body = io.NopCloser(bytes.NewReader(body))
	if !merge.MayContainVersion(body) {
		return changed, nil
	}
	var replaced []byte
	if patch {
		replaced, err = s.ownPatch(body)
	} else {
		replaced, err = s.ownPreconditions(r, body)
	}
	if err != nil || replaced == nil {
		return changed, err
	}
	if !patch {
		changed.Header.Set("Content-Type", "application/json")
	}
	changed.Body, changed.ContentLength = io.NopCloser(bytes.NewReader(replaced)), int64(len(replaced))
	return changed, nil
}

// ownPreconditions returns changed DeleteOptions in JSON, or nil if nothing must be changed.
func (s *installation) ownPreconditions(r *http.Request, body []byte) ([]byte, error) {
	options := metav1.DeleteOptions{}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"} // if the body has none
	format, err := negotiation.NegotiateInputSerializer(r, false, registry.Codecs)
	if err != nil {
		return nil, nil //nolint:nilerr // the upstream handler reports the error
	}
	if _, _, err := format.Serializer.Decode(body, &kind, &options); err != nil || options.Preconditions == nil || options.Preconditions.ResourceVersion == nil {
		return nil, nil //nolint:nilerr // the upstream handler reports the error
	}
	own, err := s.ownVersion(*options.Preconditions.ResourceVersion)
	if err != nil {
		return nil, err
	}
	options.Preconditions.ResourceVersion = &own
	return json.Marshal(options)
}

// ownPatch returns a changed JSON patch, or nil if nothing must be changed.
func (s *installation) ownPatch(body []byte) ([]byte, error) {
	var operations []map[string]json.RawMessage
	if err := json.Unmarshal(body, &operations); err != nil {
		return nil, nil //nolint:nilerr // the upstream handler reports the error
	}
	found := false
	for _, operation := range operations {
		var path, given string
		if json.Unmarshal(operation["path"], &path) != nil || path != "/metadata/resourceVersion" || json.Unmarshal(operation["value"], &given) != nil {
			continue
		}
		own, err := s.ownVersion(given)
		if err != nil {
			return nil, err
		}
		if operation["value"], err = json.Marshal(own); err != nil {
			return nil, err
		}
		found = found || own != given
	}
	if !found {
		return nil, nil
	}
	return json.Marshal(operations)
}

// withData returns to servers that follow this shard which data they observe. It rejects a resourceVersion with 410 if
// its data was replaced by an older backup since, because the same revisions may now identify other changes.
func (s *storedData) withData(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, follows := r.Header[request.DataHeader]
		if u, ok := apirequest.UserFrom(r.Context()); !follows || !ok || !identity.MemberOf(r.Context(), u, user.SystemPrivilegedGroup) {
			next.ServeHTTP(w, r)
			return
		}
		if err := s.checkData(r, given[0]); err != nil {
			responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		w.Header().Set(request.DataHeader, s.starts.Latest())
		next.ServeHTTP(w, r)
	})
}

// checkData returns the API status for a client that has observed other data up to the resourceVersion, or nil.
func (s *storedData) checkData(r *http.Request, seen string) error {
	// An invalid resourceVersion is reported when the request is decoded.
	version, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	if seen == "" || version == 0 {
		return nil
	}
	switch same, err := s.starts.Had(r.Context(), seen, version); {
	case err != nil:
		return apierrors.NewInternalError(err)
	case !same:
		return apierrors.NewResourceExpired("the data of the shard was restored from an older backup: changes up to the resource version may be lost")
	default:
		return nil
	}
}
