"""Commands that would wait at a terminal are told from those that would not.
Method: two lists of commands as models write them."""

from __future__ import annotations

import pytest

from treadle.worker.agent.tools.interactive import why_interactive

REFUSED = """
vim a.txt
cd src && nano main.py
EDITOR=vi vi x
/usr/bin/vim x
nohup vim x
env A=1 emacs x
less README.md
man ls
top
htop
watch -n1 ls
ssh host
ssh -p 22 user@host
python
python3 -i script.py
node
bash
sh -i
echo a; python
if true; then python; fi
psql -h db mydb
mysql -u root
sqlite3 app.db
git rebase -i HEAD~3
git -C repo rebase --interactive main
git add -p
git commit
git commit -a
sudo apt-get install x
sudo vim /etc/hosts
sudo -n vim /etc/hosts
docker run -it ubuntu bash
docker exec -it box sh
crontab -e
su - root
tmux
timeout 5 vim x
time top
gdb ./a.out
(cd x; vim y)
""".strip().splitlines()

ALLOWED = """
ls -la
echo vim
grep -r "vim" .
cat a | less
python script.py
python -c "print(1)"
python -m pytest -q
python < script.py
echo 'print(1)' | python
python3 --version
bash -c 'echo hi'
bash script.sh
node index.js
ssh host uptime
ssh -p 22 user@host 'ls -la'
ssh -N -L 80:a:80 host
top -b -n 1
vim -es script.vim
emacs --batch -l x.el
psql -c 'select 1' mydb
psql mydb -f dump.sql
sqlite3 app.db 'select 1'
sqlite3 app.db < dump.sql
git rebase main
git commit -m "a message"
git commit -am "a message"
git commit --amend --no-edit
git log --oneline | head
git add -A
sudo -n true
docker run --rm ubuntu ls
docker exec box ls -t
crontab -l
tmux new -d -s x
timeout 5 python x.py
echo "unbalanced
pip install vim
test -f vim
""".strip().splitlines()


@pytest.mark.parametrize("command", REFUSED)
def test_a_command_that_waits_for_a_person_is_recognised(command: str) -> None:
    assert why_interactive(command)


@pytest.mark.parametrize("command", ALLOWED)
def test_a_command_that_ends_by_itself_is_let_through(command: str) -> None:
    assert why_interactive(command) == ""


def test_the_text_of_a_here_document_is_no_command() -> None:
    assert why_interactive("cat > notes <<'EOF'\nvim is an editor\ntop\nEOF\nls") == ""
    assert why_interactive("python <<EOF\nprint(1)\nEOF") == ""
    assert why_interactive("cat <<EOF\nx\nEOF\nvim y")


def test_every_line_is_looked_at() -> None:
    assert why_interactive("ls\nvim a\n") and why_interactive("ls &\n\ntop")
