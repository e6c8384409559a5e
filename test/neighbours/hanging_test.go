package neighbours

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
)

// hangingFlood is the workspaces whose writes hang in webhooks of their own.
type hangingFlood struct {
	in      []*hangingWorkspace
	pending sync.WaitGroup

	mu sync.Mutex
	// refusals says how writes of each user were refused, or failed.
	refusals map[*tenant][]string
}

// hangingWorkspace is one of them.
type hangingWorkspace struct {
	// owner administers it, robot is a service account of it, and same is the same user in each of them.
	owner, robot, same *tenant
	// asked has an entry for each call of its webhook, up to own.
	asked chan struct{}
}

// own is how many requests of a logical cluster may hang however many of others do.
const own = 4

// add makes the webhook in a workspace.
func (f *hangingFlood) add(t *testing.T, owner *tenant, mark string, release <-chan struct{}) *hangingWorkspace {
	t.Helper()
	w := &hangingWorkspace{owner: owner, asked: make(chan struct{}, own), robot: owner.robot(t, "flooding-"+mark).apart(t), same: owner.withToken(t, "user-1", "user-1-token", "same-"+mark).apart(t)}
	hook := hangs(t, w.asked, release)
	_, err := w.hooks().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: mark},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hanging.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
			SideEffects:   new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig:  admissionregistrationv1.WebhookClientConfig{URL: new(hook.URL), CABundle: caOf(hook)},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.in = append(f.in, w)
	return w
}

func (w *hangingWorkspace) hooks() admissionclient.ValidatingWebhookConfigurationInterface {
	return w.owner.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
}

// call has the webhook called once.
func (f *hangingFlood) call(ctx context.Context, t *testing.T, in *hangingWorkspace) {
	t.Helper()
	var one sync.Mutex                  // that waits for it is enough
	require.Eventually(t, func() bool { // it is there some time after its configuration
		if one.TryLock() {
			f.pending.Go(func() {
				defer one.Unlock()
				f.write(ctx, in.robot, "first")
			})
		}
		return len(in.asked) > 0
	}, testTimeout, tick, "the webhook is called")
}

// post sends n writes as a user.
func (f *hangingFlood) post(ctx context.Context, as *tenant, n int) {
	for i := range n {
		f.pending.Go(func() { f.write(ctx, as, fmt.Sprint("flood-", i)) })
	}
}

func (f *hangingFlood) write(ctx context.Context, as *tenant, name string) {
	code, header, says, err := as.exchange(ctx, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
	if code == http.StatusCreated || ctx.Err() != nil {
		return
	}
	what := fmt.Sprintf("%d, Retry-After %s: %.300s", code, header.Get("Retry-After"), says)
	if err != nil {
		what = err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusals[as] = append(f.refusals[as], what)
}

// refused waits until a write of one of those users is refused. By which limit depends on which is reached first.
func (f *hangingFlood) refused(t *testing.T, users ...*tenant) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.ContainsFunc(users, func(u *tenant) bool { return len(f.refusals[u]) > 0 })
	}, testTimeout, tick, "nobody has all that there is")
	f.wellRefused(t)
}

// wellRefused asserts that all was refused until later.
func (f *hangingFlood) wellRefused(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, refusals := range f.refusals {
		for _, what := range refusals {
			require.Regexp(t, `^429, Retry-After [1-9]`, what)
		}
	}
}

// hanging: requests of one user and of several, which hang in the webhooks of six workspaces, take nothing
// that others need, and have bounds of their own: of each logical cluster, of each user and in all.
func hanging(t *testing.T, w *world) {
	const flooding = 6
	ctx, stop := context.WithCancel(t.Context())
	release := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	flood := &hangingFlood{refusals: map[*tenant][]string{}}
	t.Cleanup(func() {
		unblock()
		stop()
		flood.pending.Wait()
		for _, in := range flood.in {
			_ = in.hooks().Delete(context.WithoutCancel(ctx), w.mark, metav1.DeleteOptions{})
		}
	})
	others := []*tenant{w.quiet, w.workspace(t, "beside").robot(t, "beside-"+w.mark).apart(t)}
	first := flood.add(t, w.attacker, w.mark, release)
	for i := range flooding - 1 {
		flood.add(t, w.workspace(t, fmt.Sprintf("hanging-%d", i)), w.mark, release)
	}
	for _, in := range flood.in {
		flood.call(ctx, t, in)
	}
	paused := func() int { return int(w.counted(t, "shardplane_fairness_paused_requests")) }
	// must has others write, and whose workspaces flood read, while no more than so many requests hang.
	must := func(most int) {
		t.Helper()
		for i := range maxWriting {
			for _, u := range others {
				u.must(t, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"other-%d"}}`, i))
			}
		}
		for _, in := range flood.in {
			in.owner.must(t, http.MethodGet, configMaps, "")
		}
		require.True(t, seen(func() bool { return paused() <= most }), "more requests hang than %d", most)
		flood.wellRefused(t)
	}

	flood.post(ctx, first.robot, maxOfCluster/2+10)
	flood.refused(t, first.robot)
	require.Eventually(t, func() bool { return seen(func() bool { return paused() >= maxPaused/2 }) }, testTimeout, tick, "half of all that may hang are of one workspace")
	must(maxPaused/2 + own*(flooding+len(others)))

	var same []*tenant
	for _, in := range flood.in {
		flood.post(ctx, in.same, maxByUser/flooding+5)
		same = append(same, in.same)
	}
	flood.refused(t, same...)
	for _, in := range flood.in[1:] {
		flood.post(ctx, in.robot, maxByUser/flooding)
	}
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(flood.in, func(in *hangingWorkspace) bool { return len(in.asked) < own }) &&
			// Each gets no more than are left to others.
			seen(func() bool { return paused() >= maxPaused*flooding/(flooding+1) })
	}, testTimeout, tick, "as many hang as may, some of each workspace")
	must(maxPaused + own*(flooding+len(others)))

	unblock() // all of them go on together, and may not execute together
	must(maxPaused + own*(flooding+len(others)))
	// Writes whose clients disconnect while they wait for their turn throttle their workspaces, until the
	// last of them has ended.
	flood.pending.Wait()
}
