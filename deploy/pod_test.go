package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// pod runs a manifest's pod in a kubelet's order, as far as one machine without a cluster can. Each
// container runs under bwrap with the manifest's command, arguments, environment, user, groups and
// mounts.
type pod struct {
	t       *testing.T
	spec    core.PodSpec
	objects manifests
	images  map[string]*image
	hosts   mount
	labels  map[string]string

	volumes map[string]string // their directories on this host
}

// newPod creates the pod's volumes.
func newPod(t *testing.T, spec core.PodSpec, objects manifests, images map[string]*image, names map[string]string) *pod {
	t.Helper()
	p := &pod{t: t, spec: spec, objects: objects, images: images, hosts: hosts(t, names), volumes: map[string]string{}}
	for _, v := range spec.Volumes {
		dir := folder(t)
		p.volumes[v.Name] = dir
		switch {
		case v.EmptyDir != nil:
			p.chown(dir, "2777")
		case v.ConfigMap != nil:
			p.publish(v.Name, objects.configs[v.ConfigMap.Name].Data, 0o644)
		case v.Secret != nil:
			p.publish(v.Name, objects.secrets[v.Secret.SecretName].StringData, os.FileMode(*v.Secret.DefaultMode))
		default:
			t.Fatalf("the volume %s is of a kind that this test does not know", v.Name)
		}
	}
	return p
}

// chown gives root's file to the pod's group, as the kubelet does for fsGroup.
func (p *pod) chown(path, mode string) {
	p.t.Helper()
	output(p.t, asRoot("chown", fmt.Sprintf("0:%d", *p.spec.SecurityContext.FSGroup), path))
	output(p.t, asRoot("chmod", mode, path))
}

// publish writes data into a volume as the kubelet does: files in a directory with a new name, and
// a link that is replaced.
func (p *pod) publish(volume string, data map[string]string, mode os.FileMode) {
	p.t.Helper()
	dir := p.volumes[volume]
	version, err := os.MkdirTemp(dir, "..")
	if err != nil {
		p.t.Fatal(err)
	}
	for name, text := range data {
		p.chown(put(p.t, version, name, text, 0o600), fmt.Sprintf("%o", mode))
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			p.t.Fatal(err)
		}
	}
	p.chown(version, "2755")
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		p.t.Fatal(err)
	}
}

// container returns one of the pod's containers.
func (p *pod) container(c core.Container) container {
	p.t.Helper()
	img := p.images[c.Image]
	if img == nil {
		p.t.Fatalf("%s: unknown image %s", c.Name, c.Image)
	}
	environment := map[string]string{}
	run := img.container()
	for _, e := range c.Env {
		environment[e.Name] = e.Value
		if e.ValueFrom != nil {
			label, ok := strings.CutPrefix(e.ValueFrom.FieldRef.FieldPath, "metadata.labels['")
			if !ok {
				p.t.Fatalf("%s: this test does not know %s", c.Name, e.ValueFrom.FieldRef.FieldPath)
			}
			environment[e.Name] = p.labels[strings.TrimSuffix(label, "']")]
		}
		run.env = append(run.env, e.Name+"="+environment[e.Name])
	}
	if c.Command != nil {
		run.args = nil
	}
	for _, arg := range append(c.Command, c.Args...) {
		for key := range maps.Keys(environment) {
			arg = strings.ReplaceAll(arg, "$("+key+")", environment[key])
		}
		run.args = append(run.args, arg)
	}
	s := c.SecurityContext
	run.user = fmt.Sprintf("%d:%d", *s.RunAsUser, *s.RunAsGroup)
	run.groups = []string{fmt.Sprint(*p.spec.SecurityContext.FSGroup)}
	run.mounts = []mount{p.hosts}
	for _, v := range c.VolumeMounts {
		run.mounts = append(run.mounts, mount{from: p.volumes[v.Name], to: v.MountPath, readOnly: v.ReadOnly})
	}
	return run
}

// start starts the sidecar and, after its startupProbe succeeds, the other container.
func (p *pod) start() (sidecar, main *process, line func()) {
	p.t.Helper()
	c := p.spec.InitContainers[0]
	sidecar = p.container(c).start(p.t)
	testwait.Until(p.t, "the startupProbe succeeds", func() bool {
		if sidecar.gone() {
			p.t.Fatalf("the sidecar ended with %d:\n%s", sidecar.wait(), sidecar.out.String())
		}
		return p.probe(sidecar, c.StartupProbe) == nil
	})
	main, line = p.container(p.spec.Containers[0]).startWithInput(p.t)
	return sidecar, main, line
}

// probe runs a probe as the kubelet does.
func (p *pod) probe(in *process, probe *core.Probe) error {
	p.t.Helper()
	code, out := in.exec(probe.Exec.Command...)
	if code != 0 {
		return fmt.Errorf("exit code %d: %s", code, out)
	}
	return nil
}
