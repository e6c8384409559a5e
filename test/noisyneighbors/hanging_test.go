package noisyneighbors

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	"github.com/shardplane/shardplane/test/harness"
)

// hangingFlood contains workspaces with writes that hang in their own webhooks.
type hangingFlood struct {
	workspaces []*hangingWorkspace
	pending    sync.WaitGroup

	mu sync.Mutex
	// rejections are the errors of writes of each user.
	rejections map[*tenant][]string
}

// hangingWorkspace is a workspace with a hanging webhook.
type hangingWorkspace struct {
	// owner is the administrator, account a service account of the workspace, and same the same
	// user in all workspaces.
	owner, account, same *tenant
	// called has an entry for each call of the webhook, up to minPaused.
	called chan struct{}
}

// minPaused is the number of requests of a logical cluster that may always wait for webhooks.
const minPaused = 4

// add creates the webhook in a workspace.
func (f *hangingFlood) add(t *testing.T, owner *tenant, id string, release <-chan struct{}) *hangingWorkspace {
	t.Helper()
	w := &hangingWorkspace{owner: owner, called: make(chan struct{}, minPaused), account: owner.serviceAccount(t, "flooding-"+id).withOwnConnection(t), same: owner.withToken(t, "user-1", "user-1-token", "same-"+id).withOwnConnection(t)}
	hook := hangingWebhook(t, w.called, release)
	_, err := w.hooks().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hanging.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
			SideEffects:   new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig:  admissionregistrationv1.WebhookClientConfig{URL: new(hook.URL), CABundle: harness.CABundle(hook)},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.workspaces = append(f.workspaces, w)
	return w
}

func (w *hangingWorkspace) hooks() admissionclient.ValidatingWebhookConfigurationInterface {
	return w.owner.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
}

// call waits until the webhook is called once.
func (f *hangingFlood) call(ctx context.Context, t *testing.T, in *hangingWorkspace) {
	t.Helper()
	var one sync.Mutex                  // one pending write is sufficient
	require.Eventually(t, func() bool { // the configuration is effective only later
		if one.TryLock() {
			f.pending.Go(func() {
				defer one.Unlock()
				f.write(ctx, in.account, "first")
			})
		}
		return len(in.called) > 0
	}, testTimeout, tick, "the webhook was not called")
}

// post sends n writes of a user.
func (f *hangingFlood) post(ctx context.Context, as *tenant, n int) {
	for i := range n {
		f.pending.Go(func() { f.write(ctx, as, fmt.Sprint("flood-", i)) })
	}
}

func (f *hangingFlood) write(ctx context.Context, as *tenant, name string) {
	code, header, body, err := as.request(ctx, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
	if code == http.StatusCreated || ctx.Err() != nil {
		return
	}
	what := fmt.Sprintf("%d, Retry-After %s: %.300s", code, header.Get("Retry-After"), body)
	if err != nil {
		what = err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rejections[as] = append(f.rejections[as], what)
}

// untilRejected waits until a write of one of the users is rejected by any limit.
func (f *hangingFlood) untilRejected(t *testing.T, users ...*tenant) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.ContainsFunc(users, func(u *tenant) bool { return len(f.rejections[u]) > 0 })
	}, testTimeout, tick, "no write was rejected")
	f.checkRejections(t)
}

// checkRejections checks that all rejected writes may be retried later.
func (f *hangingFlood) checkRejections(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, rejections := range f.rejections {
		for _, what := range rejections {
			require.Regexp(t, `^429, Retry-After [1-9]`, what)
		}
	}
}

// hanging checks that requests which hang in webhooks of six workspaces, of one user and of
// several, use no seats of others, and that they are limited for each logical cluster, for each
// user and in total.
func hanging(t *testing.T, w *world) {
	const flooding = 6
	ctx, stop := context.WithCancel(t.Context())
	release := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	flood := &hangingFlood{rejections: map[*tenant][]string{}}
	t.Cleanup(func() {
		unblock()
		stop()
		flood.pending.Wait()
		for _, in := range flood.workspaces {
			_ = in.hooks().Delete(context.WithoutCancel(ctx), w.id, metav1.DeleteOptions{})
		}
	})
	others := []*tenant{w.quiet, w.workspace(t, "beside").serviceAccount(t, "beside-"+w.id).withOwnConnection(t)}
	first := flood.add(t, w.attacker, w.id, release)
	for i := range flooding - 1 {
		flood.add(t, w.workspace(t, fmt.Sprintf("hanging-%d", i)), w.id, release)
	}
	for _, in := range flood.workspaces {
		flood.call(ctx, t, in)
	}
	paused := func() int { return int(w.metric(t, "shardplane_fairness_paused_requests")) }
	// must sends writes of others, and reads of the attacking workspaces, and checks the number of
	// paused requests.
	must := func(most int) {
		t.Helper()
		for i := range maxWriting {
			for _, u := range others {
				u.must(t, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"other-%d"}}`, i))
			}
		}
		for _, in := range flood.workspaces {
			in.owner.must(t, http.MethodGet, configMaps, "")
		}
		require.True(t, countersMatch(paused() <= most), "more than %d paused requests", most)
		flood.checkRejections(t)
	}

	flood.post(ctx, first.account, maxPerCluster/2+10)
	flood.untilRejected(t, first.account)
	require.Eventually(t, func() bool { return countersMatch(paused() >= maxPaused/2) }, testTimeout, tick, "one workspace does not have half of the paused requests")
	must(maxPaused/2 + minPaused*(flooding+len(others)))

	var same []*tenant
	for _, in := range flood.workspaces {
		flood.post(ctx, in.same, maxPerUser/flooding+5)
		same = append(same, in.same)
	}
	flood.untilRejected(t, same...)
	for _, in := range flood.workspaces[1:] {
		flood.post(ctx, in.account, maxPerUser/flooding)
	}
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(flood.workspaces, func(in *hangingWorkspace) bool { return len(in.called) < minPaused }) &&
			// A workspace gets only a part of the remaining slots.
			countersMatch(paused() >= maxPaused*flooding/(flooding+1))
	}, testTimeout, tick, "the paused requests do not reach the limit, with some of each workspace")
	must(maxPaused + minPaused*(flooding+len(others)))

	unblock() // all continue at once, but must not execute at once
	must(maxPaused + minPaused*(flooding+len(others)))
	// Requests with disconnected clients throttle their workspace until they end, so wait for them.
	flood.pending.Wait()
}
