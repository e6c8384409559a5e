package frontproxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	deniedTimeout = 5 * time.Second
	// shardRetryTimeout is how long responses contain Retry-After after a shard has become unreachable.
	// Clients such as kubectl retry each request ten times before they report the error.
	shardRetryTimeout = 10 * time.Second
)

// gate controls the disclosure of logical clusters. A user without access receives the same
// response as for a logical cluster that does not exist, after the same time.
type gate struct {
	resolver    *resolver
	accessCache accessCache
	groups      authn.GroupFilter
	// unread is shards.unread. Only if it returns none, an unknown logical cluster does not exist.
	unread func() (shards []string, since time.Time)
}

// administers reports whether a user administers the installation. Groups that are not forwarded to shards are ignored.
func (g *gate) administers(ctx context.Context, userInfo user.Info) bool {
	return identity.MemberOf(ctx, g.forwarded(userInfo), request.GroupAdmin)
}

func (g *gate) forwarded(userInfo user.Info) user.Info {
	return &user.DefaultInfo{Name: userInfo.GetName(), UID: userInfo.GetUID(), Groups: g.groups.Filter(userInfo.GetGroups()), Extra: userInfo.GetExtra()}
}

type accessRequest struct {
	*gate
	*call

	// shard is the shard of the logical cluster, which authorizes access. It is nil if unknown.
	shard *backend
	// cluster is the resolved name, and virtualWorkspace the path of the virtual workspace, if any.
	cluster, virtualWorkspace string
	accessKey                 accessKey
	// isNew is set while the logical cluster is not ready, or servers may not have observed yet that it is.
	isNew   bool
	release func()
}

func (g *gate) accessRequest(c *call) *accessRequest {
	return &accessRequest{gate: g, call: c, release: func() {}}
}

// take acquires a slot for a call that may have to wait. It returns an error response if there is none.
func (v *accessRequest) take() *apierrors.StatusError {
	release, ok := v.resolver.acquire(identity.FlowOf("", v.user))
	if !ok {
		return statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon,
			"too many pending requests of this user for workspaces for which it is not yet authorized, try again later")
	}
	v.release = release
	return nil
}

func (v *accessRequest) at(target workspaceindex.Target, virtualWorkspace string, shard *backend) {
	v.cluster, v.virtualWorkspace, v.shard, v.accessKey = target.Cluster.String(), virtualWorkspace, shard, accessKeyOf(v.user, target.Cluster, virtualWorkspace)
}

func (v *accessRequest) readyIn() time.Duration {
	return max(0, time.Until(v.arrived.Add(v.resolver.ready)))
}

// identify sets the identity of the user, and the remaining time to wait, in a request to the shard.
func (v *accessRequest) identify(header http.Header) {
	if v.isNew {
		header.Set(request.ReadyTimeoutHeader, v.readyIn().String())
	}
	v.call.identify(header, v.groups)
}

// accept returns the refusal if a shard's response would disclose to a user without access that the
// logical cluster exists. This applies to a 403 without the header that the shard sets for authorized
// users. For other errors without it, e.g. timeouts and malformed impersonation, which occur before
// authorization, the access is checked separately.
func (v *accessRequest) accept(r *http.Request, res *http.Response) *apierrors.StatusError {
	switch access, failed := takeAccessHeader(res.Header), res.StatusCode >= http.StatusBadRequest; {
	case access == "true":
		v.accessCache.Add(v.accessKey, nil, accessTTL)
		v.release()
		return nil
	case !failed && v.virtualWorkspace == "":
		v.release() // nothing waits any more, even if the response takes long
		return nil
	case failed && res.StatusCode != http.StatusForbidden:
		return v.conceal(r)
	default: // includes success, because a virtual workspace exists even if it shows nothing of the logical cluster
		return v.refusal(r)
	}
}

// takeAccessHeader removes the header that reports whether a shard has authorized a user: "true", "false" or empty.
func takeAccessHeader(header http.Header) string {
	access := header.Get(request.AccessAuthorizedHeader)
	header.Del(request.AccessAuthorizedHeader)
	return access
}

// concealUnlessCached is conceal for users that were not authorized recently. The request body must not be read
// before, because that alone would disclose that there is a server.
func (v *accessRequest) concealUnlessCached(r *http.Request) *apierrors.StatusError {
	if v.accessCache.has(v.accessKey) {
		return nil
	}
	return v.conceal(r)
}

// conceal returns the refusal if the shard denies access to the logical cluster. Without a response, it returns nil.
func (v *accessRequest) conceal(r *http.Request) *apierrors.StatusError {
	if denied, _ := v.checkAccess(r.Context()); denied {
		return v.refusal(r)
	}
	return nil
}

// checkAccess checks on the shard whether access is denied or granted. Both are false without a response.
func (v *accessRequest) checkAccess(ctx context.Context) (denied, authorized bool) {
	if v.shard == nil {
		return false, false
	}
	timeout := deniedTimeout
	if v.isNew {
		timeout += v.readyIn() // users with access wait until it is ready
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := v.shard.get(ctx, v.virtualWorkspace+request.ClusterPath(v.cluster)+"/version", "")
	if err != nil {
		return false, false
	}
	v.identify(r.Header)
	res, err := v.shard.transport(false).RoundTrip(r)
	if err != nil {
		return false, false
	}
	defer func() { _ = res.Body.Close() }()
	access := takeAccessHeader(res.Header)
	if v.virtualWorkspace != "" && access == "false" && (res.StatusCode < http.StatusBadRequest || res.StatusCode == http.StatusNotFound) {
		return true, false // the virtual workspace shows nothing of the logical cluster
	}
	return res.StatusCode == http.StatusForbidden && access != "true", access == "true"
}

// refusal is the response to a user without access, which may have been authorized before.
func (v *accessRequest) refusal(r *http.Request) *apierrors.StatusError {
	v.accessCache.Remove(v.accessKey)
	v.resolver.delayDenial(r.Context(), v.arrived)
	return v.unknown(r)
}

// lost is the refusal if the request failed with err and the user has no access, otherwise nil.
func (v *accessRequest) lost(r *http.Request, err error) *apierrors.StatusError {
	operation, ok := errors.AsType[*net.OpError](err)
	if ok && operation.Op == "dial" {
		return nil
	}
	return v.conceal(r)
}

func (v *accessRequest) unavailable(r *http.Request, why string) *apierrors.StatusError {
	return cmp.Or(v.conceal(r), unavailable("%s", why))
}

func (v *accessRequest) missing(r *http.Request, target workspaceindex.Target, outcome workspaceindex.Outcome) *apierrors.StatusError {
	if shards, _ := v.unread(); len(shards) == 0 && mayDisclosePending(r.Context(), v.user, target, outcome) {
		return unavailable("the workspace is not ready yet, try again")
	}
	return v.unknown(r)
}

// unknown is the response for workspaces that do not exist, and to users without access. While a
// shard is unreachable or has not been read, it is 503 because the workspace may exist there.
func (v *accessRequest) unknown(r *http.Request) *apierrors.StatusError {
	shards, since := v.unread()
	if len(shards) == 0 {
		return forbidden(r, unescapedRest(v.rest))
	}
	message := "not all workspaces are known, because a shard is unreachable"
	if v.administers(r.Context(), v.user) {
		message += ": " + strings.Join(shards, ", ") + ". Start it, or delete its Shard object in root if it no longer exists"
	}
	retryAfter := retrySoon
	if time.Since(since) > shardRetryTimeout {
		retryAfter = 0
	}
	return statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, retryAfter, "%s", message)
}

const (
	//reference:none
	maxAccessEntries = 64 << 10
	accessTTL        = 10 * time.Minute
)

// accessKey is a user in a logical cluster or virtual workspace. Names are hashed because they may have 64 KiB.
type accessKey struct {
	user             [sha256.Size]byte
	home, cluster    logicalcluster.Name
	virtualWorkspace string
}

func accessKeyOf(userInfo user.Info, to logicalcluster.Name, virtualWorkspace string) accessKey {
	return accessKey{user: sha256.Sum256([]byte(userInfo.GetName())), home: identity.FlowOf("", userInfo).Cluster, cluster: to, virtualWorkspace: virtualWorkspace}
}

// accessCache contains the users that were recently authorized for each logical cluster. Its existence need not be
// hidden from them. The cache is not used for authorization, so entries may be outdated.
type accessCache struct{ *cache.LRUExpireCache }

func newAccessCache() accessCache { return accessCache{cache.NewLRUExpireCache(maxAccessEntries)} }

func (c accessCache) has(key accessKey) bool {
	_, authorized := c.Get(key)
	return authorized
}

const (
	// maxWaiting and maxWaitingPerUser limit concurrent requests of users that are not yet authorized
	// for the logical cluster. Each user may have ownWaiting, regardless of other users.
	//
	//reference:limit server | concurrent requests of users before authorization for the logical cluster, at a front-proxy | 429
	maxWaiting = 4096
	//reference:limit user | concurrent requests before authorization for the logical cluster, at a front-proxy | 429
	maxWaitingPerUser = 256
	ownWaiting        = 8
	newWorkspaceAge   = 10 * time.Second
	// maxStretch limits the delay of denied requests, as a multiple of --index-timeout. stretchDuration
	// is how long the delay stays increased after a slow denial.
	//
	//reference:none
	maxStretch      = 8
	stretchDuration = 10 * time.Minute
)

// resolver looks up logical clusters. A request for an unknown logical cluster waits for a bounded
// time, because the index may not contain a new workspace yet.
//
// The wait must not disclose which workspaces exist. It is the same for every unknown path and user, and a shard's
// response to a user without access is delayed for the same time (see accessRequest.refusal). A request acquires a slot
// before the lookup, so that it is rejected at once in both cases if there is none.
type resolver struct {
	index *workspaceindex.Index
	delay delay
	// ready is how long users with access wait for a new workspace.
	ready      time.Duration
	slots      *ledger.Ledger
	indexWaits *prometheus.CounterVec
}

// delay is the time after which requests are denied. If a shard denies a request later than that,
// the delay is increased for stretchDuration, so that requests for unknown workspaces take equally
// long.
type delay struct {
	least time.Duration

	mu    sync.Mutex
	now   time.Duration
	until time.Time // when the delay is reset to the minimum
}

func (d *delay) get() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !time.Now().Before(d.until) {
		d.now = d.least
	}
	return d.now
}

// increase increases the delay to at least took, up to a limit, in large steps that do not disclose the duration.
func (d *delay) increase(took time.Duration) {
	if took <= d.least {
		return
	}
	d.get()
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.now < took && d.now < maxStretch*d.least {
		d.now *= 2
	}
	d.until = time.Now().Add(stretchDuration)
}

func newResolver(index *workspaceindex.Index, timeout, ready time.Duration, indexWaits *prometheus.CounterVec) *resolver {
	return &resolver{index: index, indexWaits: indexWaits, delay: delay{least: timeout, now: timeout}, ready: ready, slots: ledger.NewLedger(ledger.Bounds{Total: maxWaiting, User: maxWaitingPerUser, Own: ownWaiting})}
}

// resolve waits until the index contains path, or until the delay after arrived has passed. The
// owner of a new workspace, and administrators, wait until it should be ready.
func (r *resolver) resolve(ctx context.Context, path string, arrived time.Time, userInfo user.Info) (workspaceindex.Target, workspaceindex.Outcome) {
	target, outcome := r.index.Lookup(path)
	if final(outcome) {
		return target, outcome
	}
	timer := time.NewTimer(time.Until(arrived.Add(r.delay.get())))
	defer timer.Stop()
	for over := false; ; {
		target, outcome, ended := r.next(ctx, path, timer.C, over)
		if remaining := time.Until(arrived.Add(r.ready)); ended == waitTimeout && !over && remaining > 0 && mayDisclosePending(ctx, userInfo, target, outcome) {
			over = true
			timer.Reset(remaining)
			continue
		}
		if ended != "" {
			r.indexWaits.WithLabelValues(ended).Inc()
			return target, outcome
		}
	}
}

const waitFound, waitTimeout, waitCanceled = "found", "timeout", "canceled"

// next looks a path up, and waits until the result may have changed. ended is the result of the
// wait, or empty. If expected is set, the workspace existed before.
func (r *resolver) next(ctx context.Context, path string, late <-chan time.Time, expected bool) (target workspaceindex.Target, outcome workspaceindex.Outcome, ended string) {
	changed, done := r.index.Changed(path)
	defer done()
	target, outcome = r.index.Lookup(path)
	switch {
	case final(outcome):
		return target, outcome, waitFound
	case expected && outcome == workspaceindex.Unknown: // deleted in the meantime: further waiting is useless
		return target, outcome, waitTimeout
	}
	select {
	case <-changed:
		return target, outcome, ""
	case <-late:
		return target, outcome, waitTimeout
	case <-ctx.Done():
		return target, outcome, waitCanceled
	}
}

// mayDisclosePending reports whether the existence of a workspace may be disclosed to a user before it has a logical
// cluster. Only its owner and administrators may.
func mayDisclosePending(ctx context.Context, userInfo user.Info, target workspaceindex.Target, outcome workspaceindex.Outcome) bool {
	if outcome != workspaceindex.Pending {
		return false
	}
	return identity.MemberOf(ctx, userInfo, user.SystemPrivilegedGroup, request.GroupAdmin) ||
		slices.ContainsFunc(identity.In("", userInfo), func(i user.Info) bool {
			return target.Owner != 0 && workspaceindex.OwnerNamed(i.GetName()) == target.Owner
		})
}

// isNew reports whether a logical cluster is not ready for users, or servers may not have observed yet that it is.
func isNew(target workspaceindex.Target) bool {
	return !tenancy.HasContent(target.Phase) || time.Since(time.Unix(target.Created, 0)) < newWorkspaceAge
}

// delayDenial delays a denied request that arrived at the given time as long as a request for an unknown workspace.
func (r *resolver) delayDenial(ctx context.Context, arrived time.Time) {
	r.delay.increase(time.Since(arrived))
	select {
	case <-time.After(time.Until(arrived.Add(r.delay.get()))):
	case <-ctx.Done():
	}
}

func (r *resolver) acquire(flow identity.Flow) (release func(), ok bool) {
	holder := ledger.Holder{User: flow}
	if r.slots.Take(holder, 1) != nil {
		r.indexWaits.WithLabelValues("throttled").Inc()
		return nil, false
	}
	return sync.OnceFunc(func() { r.slots.Give(holder, 1) }), true
}

func final(outcome workspaceindex.Outcome) bool {
	return outcome != workspaceindex.Unknown && outcome != workspaceindex.Pending
}

func known(outcome workspaceindex.Outcome) bool {
	return outcome == workspaceindex.Found || outcome == workspaceindex.Unavailable
}
