package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifests are all files of kubernetes/, decoded.
type manifests struct {
	configs map[string]core.ConfigMap
	secrets map[string]core.Secret
	pods    map[string]core.PodSpec // of Deployments, Jobs and CronJobs, by name
}

// decodeManifests reads every manifest strictly. A key that Kubernetes rejects is an error, and so
// is a kind that this test doesn't handle.
func decodeManifests(t *testing.T) manifests {
	t.Helper()
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	m := manifests{configs: map[string]core.ConfigMap{}, secrets: map[string]core.Secret{}, pods: map[string]core.PodSpec{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
			m.add(t, file, doc)
		}
	}
	return m
}

func (m manifests) add(t *testing.T, file string, doc []byte) {
	t.Helper()
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	strict := func(into any) {
		t.Helper()
		if err := decodeStrictly(doc, into); err != nil {
			t.Fatalf("%s, %s: %v", file, kind.Kind, err)
		}
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 ConfigMap":
		var o core.ConfigMap
		strict(&o)
		m.configs[o.Name] = o
	case "v1 Secret":
		var o core.Secret
		strict(&o)
		m.secrets[o.Name] = o
	case "apps/v1 Deployment":
		var o apps.Deployment
		strict(&o)
		for key, value := range o.Spec.Selector.MatchLabels {
			if o.Spec.Template.Labels[key] != value {
				t.Errorf("%s: its selector does not choose its own pods", file)
			}
		}
		if port := o.Spec.Template.Annotations["prometheus.io/port"]; port != fmt.Sprint(o.Spec.Template.Spec.InitContainers[0].Ports[0].ContainerPort) {
			t.Errorf("%s: Prometheus is sent to port %s", file, port)
		}
		m.pods[o.Name] = o.Spec.Template.Spec
	case "batch/v1 Job":
		var o batch.Job
		strict(&o)
		m.pods[o.Name] = o.Spec.Template.Spec
	case "batch/v1 CronJob":
		var o batch.CronJob
		strict(&o)
		m.pods[o.Name] = o.Spec.JobTemplate.Spec.Template.Spec
	default:
		t.Fatalf("%s: %s %s is not known to this test", file, kind.APIVersion, kind.Kind)
	}
}

// decodeStrictly reads an object as an API server with strict validation does: no unknown key, no
// duplicate, and no key in another case (which yaml.UnmarshalStrict accepts).
func decodeStrictly(doc []byte, into any) error {
	text, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	lax, err := json.UnmarshalStrict(text, into)
	return errors.Join(append(lax, err)...)
}

// TestDecodeStrictly checks that invalid objects are errors.
func TestDecodeStrictly(t *testing.T) {
	t.Parallel()
	const good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: b}\n"
	if err := decodeStrictly([]byte(good), new(core.ConfigMap)); err != nil {
		t.Errorf("%s: %v", good, err)
	}
	for _, change := range [][2]string{{"data:", "dato:"}, {"data:", "Data:"}, {"a: b", "a: b, a: c"}, {"a: b", "a: 1"}, {"metadata: {", "metadata: {nome: y, "}} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if err := decodeStrictly([]byte(bad), new(core.ConfigMap)); err == nil {
			t.Errorf("it was taken:\n%s", bad)
		}
	}
}

// TestManifests checks that the manifests are consistent, and valid for the program.
func TestManifests(t *testing.T) {
	t.Parallel()
	m := decodeManifests(t)
	if len(m.pods) != 3 {
		t.Errorf("pods of %d manifests", len(m.pods))
	}
	for name, pod := range m.pods {
		t.Run(name, func(t *testing.T) {
			m.checkVolumes(t, pod)
			checkSecurity(t, pod)
			if len(pod.InitContainers) != 1 {
				t.Fatalf("%d init containers", len(pod.InitContainers))
			}
			m.checkSidecar(t, pod, pod.InitContainers[0])
			if *pod.TerminationGracePeriodSeconds < int64((drainTimeout(t, m.configs["qsidecar"])+30*time.Second)/time.Second) {
				t.Errorf("terminationGracePeriodSeconds %d leaves the workers less than 30 s beside drain_timeout", *pod.TerminationGracePeriodSeconds)
			}
		})
	}
}

// drainTimeout returns the config's drain timeout.
func drainTimeout(t *testing.T, config core.ConfigMap) time.Duration {
	t.Helper()
	var c struct {
		Drain string `json:"drain_timeout"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["config.yaml"]), &c); err != nil {
		t.Fatal(err)
	}
	d, err := time.ParseDuration(c.Drain)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// checkVolumes checks that each mount has its volume and each volume its source, that no mount uses
// subPath, and that only the sidecar can write to the socket's directory.
func (m manifests) checkVolumes(t *testing.T, pod core.PodSpec) {
	t.Helper()
	used := map[string]bool{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, v := range c.VolumeMounts {
			used[v.Name] = true
			if v.SubPath != "" {
				t.Errorf("%s mounts %s by subPath: changes never reach it", c.Name, v.Name)
			}
			if writes := c.Name == "qsidecar" && v.Name == "socket"; v.ReadOnly == writes {
				t.Errorf("%s mounts %s with readOnly %v", c.Name, v.Name, v.ReadOnly)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil || c.EnvFrom != nil {
				t.Errorf("%s has a secret in its environment", c.Name)
			}
		}
	}
	for _, v := range pod.Volumes {
		if !used[v.Name] {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
		delete(used, v.Name)
		if v.ConfigMap != nil && m.configs[v.ConfigMap.Name].Data == nil {
			t.Errorf("no ConfigMap %s", v.ConfigMap.Name)
		}
		if v.Secret != nil && m.secrets[v.Secret.SecretName].StringData == nil {
			t.Errorf("no Secret %s", v.Secret.SecretName)
		}
	}
	if len(used) > 0 {
		t.Errorf("no volumes are %v", used)
	}
}

// checkSecurity checks the restricted Pod Security Standard, and that the root file system is
// read-only.
func checkSecurity(t *testing.T, pod core.PodSpec) {
	t.Helper()
	s := pod.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
		s.FSGroup == nil || *s.FSGroup != 65532 {
		t.Errorf("the pod's security context is %+v", s)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if s == nil || s.RunAsUser == nil || *s.RunAsUser == 0 || s.RunAsGroup == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: its security context is %+v", c.Name, s)
		}
		if c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: its resources are %+v", c.Name, c.Resources)
		}
	}
}

// checkSidecar checks that it is a native sidecar on which the pod's readiness does not depend, and
// that the program accepts its arguments, probes and config.
func (m manifests) checkSidecar(t *testing.T, pod core.PodSpec, c core.Container) {
	t.Helper()
	if c.Name != "qsidecar" || c.Image != imageName || c.RestartPolicy == nil || *c.RestartPolicy != core.ContainerRestartPolicyAlways {
		t.Errorf("the sidecar is %s, %s, restart policy %v", c.Name, c.Image, c.RestartPolicy)
	}
	if c.ReadinessProbe != nil {
		t.Error("the sidecar has a readinessProbe: the application's pod would be out of service with the database")
	}
	if c.StartupProbe == nil || c.LivenessProbe == nil {
		t.Fatal("the sidecar has no startupProbe, or no livenessProbe")
	}
	known(t, append([]string{"serve"}, c.Args...))
	known(t, c.StartupProbe.Exec.Command[1:])
	known(t, c.LivenessProbe.Exec.Command[1:])
	limit := resource.MustParse(strings.TrimSuffix(env(c, "GOMEMLIMIT"), "B"))
	if most := c.Resources.Limits.Memory(); limit.Cmp(*most) >= 0 || 10*limit.Value() < 7*most.Value() {
		t.Errorf("GOMEMLIMIT is %v, and the limit %v", limit.String(), most)
	}
	socket := env(c, "QSIDECAR_SOCKET")
	if dir := filepath.Dir(socket); filepath.Dir(dir) != "/run/qsidecar" {
		t.Errorf("the socket %s is not in a folder of its own in the volume", socket)
	}
	for _, other := range pod.Containers {
		if at := env(other, "QSIDECAR_SOCKET"); at != socket {
			t.Errorf("%s looks for the socket at %q, and it is at %q", other.Name, at, socket)
		}
		if other.Image == imageName {
			known(t, other.Command[1:])
		}
	}
	m.checkConfig(t, c)
	var config struct{ Admin struct{ Listen string } }
	if err := yaml.Unmarshal([]byte(m.configs["qsidecar"].Data["config.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	if len(c.Ports) != 1 || config.Admin.Listen != fmt.Sprintf("0.0.0.0:%d", c.Ports[0].ContainerPort) {
		t.Errorf("the sidecar's ports are %v, and its config has admin.listen %s", c.Ports, config.Admin.Listen)
	}
}

func env(c core.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// known runs the help of a command with all its flags, because an unknown flag is an error.
func known(t *testing.T, args []string) {
	t.Helper()
	if out, err := exec.Command(program(t), append(slices.Clone(args), "--help")...).CombinedOutput(); err != nil {
		t.Errorf("qsidecar %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// checkConfig checks that the program reads the config that the sidecar mounts, and that its secret
// exists. No database runs, and check must report only that.
func (m manifests) checkConfig(t *testing.T, c core.Container) {
	t.Helper()
	config := m.configs["qsidecar"].Data["config.yaml"]
	var said struct {
		Databases map[string]struct {
			PasswordFile string `json:"password_file"`
		}
	}
	if err := yaml.Unmarshal([]byte(config), &said); err != nil {
		t.Fatal(err)
	}
	secret := said.Databases["main"].PasswordFile
	dir := folder(t)
	for key, value := range m.secrets["qsidecar"].StringData {
		if filepath.Join("/run/secrets/qsidecar", key) == secret {
			config = strings.Replace(config, secret, put(t, dir, key, value, 0o644), 1)
		}
	}
	if strings.Contains(config, "/run/secrets") {
		t.Errorf("the config's password_file %s isn't a key of the Secret", secret)
	}
	config = strings.Replace(config, "@postgres:5432/", "@127.0.0.1:1/", 1)
	out, err := exec.Command(program(t), "check", "--config", put(t, dir, "config.yaml", config, 0o644)).CombinedOutput()
	if code := exitCode(err); code != 1 || !strings.Contains(string(out), "refused") {
		t.Errorf("check of the config ended with %d: %s", code, out)
	}
	if !slices.ContainsFunc(c.VolumeMounts, func(v core.VolumeMount) bool { return v.MountPath == filepath.Dir(secret) }) {
		t.Errorf("nothing is mounted where the password_file %s is", secret)
	}
}
