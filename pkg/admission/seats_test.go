package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// seat records the actions of a request, with and without its seat.
type seat struct {
	mu     sync.Mutex
	paused int
	log    []string
}

func (s *seat) pause() (resume func()) {
	s.add(1)
	return func() { s.add(-1) }
}

func (s *seat) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused += n
}

func (s *seat) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	where := ", seated"
	if s.paused > 0 {
		where = ", paused"
	}
	s.log = append(s.log, what+where)
}

// drain returns and clears the records.
func (s *seat) drain() (log []string, paused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, s.log = s.log, nil
	return log, s.paused
}

// ServeHTTP is a webhook that allows all requests.
func (s *seat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.note("call of " + r.URL.Path)
	review := admissionv1.AdmissionReview{}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	_ = json.NewEncoder(w).Encode(review)
}

// recordingAuthorizer records the evaluation of a match condition that uses the authorizer.
type recordingAuthorizer struct {
	authorizer.UnconditionalAuthorizer
	seat *seat
}

func (a recordingAuthorizer) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	a.seat.note("condition of /" + attributes.GetName())
	return authorizer.DecisionAllow, "", nil
}

// TestSeats checks that a request has its seat while match conditions are evaluated, but not while a webhook
// is called.
func TestSeats(t *testing.T) {
	s := &seat{}
	hook := httptest.NewTLSServer(s)
	t.Cleanup(hook.Close)
	loopback, err := webhooktransport.NewTenants(webhooktransport.Options{AllowedCIDRs: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	r := newRig(t, 1, func(c *Config) { c.Webhooks, c.Authorizer = loopback, recordingAuthorizer{c.Authorizer, s} })
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	client := func(name string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{
			URL:      new(hook.URL + "/" + name),
			CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
		}
	}
	conditions := func(name string) []admissionregistrationv1.MatchCondition {
		return []admissionregistrationv1.MatchCondition{{Name: "allowed", Expression: `authorizer.group("").resource("secrets").name("` + name + `").check("get").allowed()`}}
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: in(name(0))}}
	for _, name := range []string{"first", "second"} {
		mutating.Webhooks = append(mutating.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name: name + ".example.com", ClientConfig: client(name), Rules: rules, MatchConditions: conditions(name), AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		})
	}
	r.server.Put(t, kinds.MutatingWebhookConfigurations.GroupVersionResource, mutating)
	r.server.Put(t, kinds.ValidatingWebhookConfigurations.GroupVersionResource, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: in(name(0))},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "third.example.com", ClientConfig: client("third"), Rules: rules, MatchConditions: conditions("third"), AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		}},
	})
	ctx := request.WithPause(request.WithClusterName(t.Context(), name(0)), s.pause)
	require.Eventually(t, func() bool {
		err := r.write(ctx, "x")
		log, _ := s.drain()
		return err == nil && len(log) == 6
	}, testTimeout, time.Millisecond, "not all webhooks were called")
	require.NoError(t, r.write(ctx, "x"))
	log, paused := s.drain()
	require.Equal(t, []string{
		"condition of /first, seated", "call of /first, paused",
		"condition of /second, seated", "call of /second, paused",
		"condition of /third, seated", "call of /third, paused",
	}, log)
	require.Zero(t, paused)
}
