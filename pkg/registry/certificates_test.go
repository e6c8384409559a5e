package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
)

func TestCertificateSigningRequests(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	requestPEM, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "jane"}, nil, nil)
	require.NoError(t, err)
	issued, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "jane"}, key)
	require.NoError(t, err)
	certificatePEM, err := certutil.EncodeCertificates(issued)
	require.NoError(t, err)

	large, err := os.ReadFile("../request/rsakeys/testdata/large.pem")
	require.NoError(t, err)

	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, name string) {
		requests := client.CertificatesV1().CertificateSigningRequests()
		request := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: named(name),
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: requestPEM, SignerName: "example.com/clients", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
				Username: "other", Groups: []string{"forged"},
			},
			Status: certificatesv1.CertificateSigningRequestStatus{Certificate: certificatePEM},
		}
		for name, change := range map[string]func(*certificatesv1.CertificateSigningRequestSpec){
			"no request":     func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = certificatePEM },
			"no usage":       func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages = nil },
			"large key":      func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = large },
			"unknown usage":  func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages = []certificatesv1.KeyUsage{"fun"} },
			"no signer":      func(s *certificatesv1.CertificateSigningRequestSpec) { s.SignerName = "" },
			"signer":         func(s *certificatesv1.CertificateSigningRequestSpec) { s.SignerName = "clients" },
			"signer's path":  func(s *certificatesv1.CertificateSigningRequestSpec) { s.SignerName = "example.com/a/b" },
			"legacy signer":  func(s *certificatesv1.CertificateSigningRequestSpec) { s.SignerName = "kubernetes.io/legacy-unknown" },
			"short duration": func(s *certificatesv1.CertificateSigningRequestSpec) { s.ExpirationSeconds = new(int32) },
		} {
			bad := request.DeepCopy()
			change(&bad.Spec)
			_, err := requests.Create(t.Context(), bad, metav1.CreateOptions{})
			require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
		}
		many := request.DeepCopy()
		many.Spec.Usages = slices.Repeat([]certificatesv1.KeyUsage{"fun"}, 24)
		_, err := requests.Create(t.Context(), many, metav1.CreateOptions{})
		require.ErrorContains(t, err, "must have at most 23 items")
		created := mustCreate(t, requests, request)
		require.Equal(t, "tester", created.Spec.Username)
		require.Contains(t, created.Spec.Groups, "system:masters")
		require.Empty(t, created.Status.Certificate)

		changed := created.DeepCopy()
		changed.Spec.SignerName, changed.Labels = "example.com/others", map[string]string{"a": "b"}
		changed.Status.Certificate = certificatePEM
		updated := mustUpdate(t, requests, changed)
		require.Equal(t, created.Spec, updated.Spec, "the spec must not change")
		require.Equal(t, "b", updated.Labels["a"])
		require.Empty(t, updated.Status.Certificate)

		approved := updated.DeepCopy()
		approved.Status.Certificate = certificatePEM
		approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		atStatus, err := requests.UpdateStatus(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: approved.ObjectMeta, Status: certificatesv1.CertificateSigningRequestStatus{Conditions: approved.Status.Conditions}}, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Empty(t, atStatus.Status.Conditions, "signers must not approve")
		approved.ResourceVersion = atStatus.ResourceVersion
		response, err := requests.UpdateApproval(t.Context(), name, approved, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Empty(t, response.Status.Certificate, "approvers must not sign")
		require.Len(t, response.Status.Conditions, 1)
		require.False(t, response.Status.Conditions[0].LastTransitionTime.IsZero())

		both := response.DeepCopy()
		both.Status.Conditions = append(both.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue})
		_, err = requests.UpdateApproval(t.Context(), name, both, metav1.UpdateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		taken := response.DeepCopy()
		taken.Status.Conditions = nil
		_, err = requests.UpdateApproval(t.Context(), name, taken, metav1.UpdateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)

		signed := response.DeepCopy()
		signed.Status.Certificate = []byte("garbage")
		_, err = requests.UpdateStatus(t.Context(), signed, metav1.UpdateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		signed.Status.Certificate = certificatePEM
		signed, err = requests.UpdateStatus(t.Context(), signed, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, certificatePEM, signed.Status.Certificate)
		require.Equal(t, certificatesv1.CertificateApproved, signed.Status.Conditions[0].Type, "the approval must be kept")
		signed.Status.Certificate = slices.Concat(certificatePEM, certificatePEM)
		_, err = requests.UpdateStatus(t.Context(), signed, metav1.UpdateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)

		list, err := requests.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=example.com/clients"})
		require.NoError(t, err)
		require.NotEmpty(t, list.Items)
		list, err = requests.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=example.com/others"})
		require.NoError(t, err)
		require.Empty(t, list.Items)
	})
}
